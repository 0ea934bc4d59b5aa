// Every request goes through here: the token, the error format, and a server that does not respond.

const KEY = "cots-token";

/** An error response; `field` names the input at fault, `retry` the seconds to wait. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, retry = null } = {}) {
    super(message);
    Object.assign(this, { status, code, field, retry });
  }
}

let askForToken = async () => null;

/** `ask(wrong)` shows the dialog and resolves with a token; `wrong` is true after a token was refused. */
export function onTokenWanted(ask) {
  askForToken = ask;
}

export const get = (path, options) => request(path, options);

export const post = (path, body, options) => request(path, { ...options, method: "POST", body });

async function request(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server is not responding. Check that it is running and that you are online.", {
      code: "unreachable",
    });
  }
  if (answer.status === 401) {
    sessionStorage.setItem(KEY, await askForToken(token !== null));
    return request(path, options);
  }
  const text = await answer.text();
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    // A response that is not JSON comes from something in between, such as a proxy; it is reported below.
  }
  if (answer.ok && data !== null) return data;
  const { code = "", message, field = null } = data?.error ?? {};
  throw new ApiError(message ?? `The server responded with status ${answer.status} and no explanation.`, {
    status: answer.status,
    code,
    field,
    retry: answer.headers.has("Retry-After") ? waiting(answer.headers.get("Retry-After")) : null,
  });
}

function waiting(header) {
  const seconds = Number.parseInt(header ?? "", 10);
  return Number.isFinite(seconds) ? Math.min(Math.max(seconds, 1), 60) : 2;
}
