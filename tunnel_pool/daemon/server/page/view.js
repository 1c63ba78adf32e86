// Which downloads are shown, and in which order: no element is touched here.

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

export const ratio = (torrent) => {
  const base = torrent.downloaded_bytes || torrent.size_bytes * torrent.progress;
  return base ? torrent.uploaded_bytes / base : 0;
};

// What each column is sorted by.
const VALUES = {
  position: (torrent) => torrent.position,
  name: (torrent) => torrent.name,
  state: (torrent) => torrent.state,
  progress: (torrent) => torrent.progress,
  size: (torrent) => torrent.size_bytes,
  down: (torrent) => torrent.down_bytes_per_s,
  up: (torrent) => torrent.up_bytes_per_s,
  eta: (torrent) => torrent.eta_s ?? Infinity,
  peers: (torrent) => torrent.peers,
  hops: (torrent) => torrent.hops,
  ratio,
};

function compare(one, other) {
  return typeof one === "string" ? collator.compare(one, other) : Math.sign(one - other) || 0;
}

/** Returns the torrents that match `{search, state, label, hops}`, sorted by `{by, descending}`. */
export function chosen(torrents, filter, order) {
  const words = filter.search.toLowerCase().split(/\s+/).filter((word) => word);
  const found = torrents.filter((torrent) => {
    const name = torrent.name.toLowerCase();
    return words.every((word) => name.includes(word) || torrent.infohash.startsWith(word))
      && (!filter.state || torrent.state === filter.state)
      && (!filter.label || torrent.labels.includes(filter.label))
      && (filter.hops === "" || torrent.hops === Number(filter.hops));
  });
  const value = VALUES[order.by];
  const sign = order.descending ? -1 : 1;
  return found.sort((one, other) => sign * compare(value(one), value(other)) || one.position - other.position);
}

export const labelsOf = (torrents) => [...new Set(torrents.flatMap((torrent) => torrent.labels))].sort(collator.compare);
