// Example lists made of words the embedded model was trained on; its confidence was verified on the last three.

const [lists, sizes] = await Promise.all(
  ["classes", "lists"].map(async (name) => (await fetch(`/static/${name}.json`)).json()),
);

export const STARTERS = Object.fromEntries(Object.values(lists).map(({ title, names }) => [title, names]));

/** Number of classes of each list that the server knows by name, such as imagenet. */
export const SIZES = new Map(Object.entries(sizes));
