// Why one of several photos failed, in words for people.

const REASONS = {
  not_an_image: "Damaged, or not a photo in a format that this server can read, such as JPEG or PNG.",
  too_many_pixels: "The photo has more pixels than this server accepts. Send a smaller copy.",
  body_too_large: "The file is larger than this server accepts. Send a smaller copy.",
  queue_full: "The server was busy. Try this photo again later.",
  busy: "The server was busy. Try this photo again later.",
  timeout: "The server took too long. Try this photo again later.",
  no_memory: "The server ran out of memory. Use fewer classes.",
};

export const reason = ({ code, message }) => REASONS[code] ?? message;

/** Whether all other photos would fail too: a wrong field of the form, or a server that is gone. */
export const concernsAll = ({ code, field }) =>
  ["unreachable", "stopping", "bad_form"].includes(code) || (Boolean(field) && field !== "image" && field !== "body");
