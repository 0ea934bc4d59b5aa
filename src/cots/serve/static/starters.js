// Class lists that come from the server: examples made of words the embedded model was trained on, and known lists.

const read = async (name) => (await fetch(`/static/${name}.json`)).json();

/**
 * - starters: { title: names }; the confidence of the embedded model was verified on the last three
 * - samples: { photo: { title, names } }, for each sample photo a list with its class
 * - sizes: number of classes of each list that the server knows by name, such as imagenet
 */
export async function loadStarters() {
  const [lists, samples, sizes] = await Promise.all(["classes", "samples", "lists"].map(read));
  const starters = Object.fromEntries(Object.values(lists).map(({ title, names }) => [title, names]));
  return { starters, samples, sizes: new Map(Object.entries(sizes)) };
}
