// What is known of one download, and may be changed of it.

import { ask } from "./api.js";
import { byId, follow, make, setText } from "./dom.js";
import { bytes, percent, rate } from "./format.js";
import { rpc } from "./rpc.js";
import { act, answer, say } from "./say.js";
import { t } from "./texts.js";

const AGAIN_MS = 2000;
const GLOBAL = 0;
const SINGLE = 1;
const PRIORITIES = ["off", "low", "normal", "high"];
const SET_BY = { low: "priority_low", normal: "priority_normal", high: "priority_high" };
const FIELDS = [
  "download_limit", "download_limited", "file_stats", "files", "peers", "seed_ratio_limit", "seed_ratio_mode",
  "tracker_stats", "upload_limit", "upload_limited",
];

const files = new Map();
let opened = null; // the infohash
let before = null; // what the form was filled with
let known = new Map();

export function open(infohash) {
  opened = infohash;
  before = null;
  files.clear();
  byId("files-of").replaceChildren();
  byId("details").hidden = false;
  show();
  byId("details-title").focus();
  act(look);
}

function close() {
  opened = null;
  byId("details").hidden = true;
}

/** Shows what has changed of the download that is open. */
export function change(torrents) {
  known = torrents;
  if (opened && !known.has(opened)) close();
  if (opened) show();
}

function show() {
  const torrent = known.get(opened);
  setText(byId("details-title"), t("details", { name: torrent.name }));
  setText(byId("details-why"), torrent.error || torrent.standstill);
}

export function wireDetails() {
  byId("details-close").addEventListener("click", close);
  byId("change").addEventListener("submit", (event) => {
    event.preventDefault();
    act(save);
  });
  setInterval(() => opened && document.visibilityState === "visible" && look().catch(() => {}), AGAIN_MS);
}

async function look() {
  const infohash = opened;
  const [torrent] = (await rpc("torrent_get", { ids: [infohash], fields: FIELDS })).torrents;
  if (!torrent || opened !== infohash) return;
  if (!before) fill(torrent);
  showFiles(infohash, torrent);
  showRows("trackers-of", torrent.tracker_stats, (tracker) => [
    tracker.announce, tracker.last_announce_result, String(tracker.last_announce_peer_count),
  ]);
  showRows("peers-of", torrent.peers, (peer) => [
    `${peer.address}:${peer.port}`, peer.client_name, percent(peer.progress),
    peer.rate_to_client ? rate(peer.rate_to_client) : "", peer.rate_to_peer ? rate(peer.rate_to_peer) : "",
  ]);
}

function showRows(id, entries, textsOf) {
  const rows = entries.map((entry) => make("tr", {}, ...textsOf(entry).map((text) => make("td", {}, text))));
  const span = byId(id).closest("table").querySelectorAll("th").length;
  byId(id).replaceChildren(...(rows.length ? rows : [make("tr", {}, make("td", { colspan: span }, t("details.none")))]));
}

function showFiles(infohash, torrent) {
  const keys = torrent.files.map((_, place) => place);
  follow(byId("files-of"), keys, files, (place) => makeFile(infohash, place));
  for (const place of keys) files.get(place).show(torrent.files[place], torrent.file_stats[place]);
  byId("files-unknown").hidden = keys.length > 0;
}

function makeFile(infohash, place) {
  const link = make("a", { href: `stream/${infohash}/${place}` });
  const done = make("td", { class: "number" });
  const options = PRIORITIES.map((value) => make("option", { value }, t(`priority.${value}`)));
  const priority = make("select", { onchange: () => act(() => prioritize(infohash, place, priority.value)) }, ...options);
  const element = make("tr", {}, make("td", {}, link), done, make("td", {}, priority));

  function showFile(file, stats) {
    setText(link, file.name);
    priority.setAttribute("aria-label", `${t("field.priority")}: ${file.name}`);
    setText(done, `${bytes(file.bytes_completed)} / ${bytes(file.length)}`);
    const value = stats.wanted ? PRIORITIES[2 + stats.priority] : "off";
    if (document.activeElement !== priority) priority.value = value;
  }
  return { element, show: showFile };
}

async function prioritize(infohash, place, value) {
  const change = value === "off"
    ? { files_unwanted: [place] }
    : { files_wanted: [place], [SET_BY[value]]: [place] };
  await rpc("torrent_set", { ids: [infohash], ...change });
}

function fill(torrent) {
  const row = known.get(opened);
  before = {
    hops: String(row.hops),
    labels: row.labels.join(", "),
    folder: row.folder,
    down: torrent.download_limited ? String(torrent.download_limit) : "",
    up: torrent.upload_limited ? String(torrent.upload_limit) : "",
    ratio: torrent.seed_ratio_mode === SINGLE ? String(torrent.seed_ratio_limit) : "",
  };
  for (const [name, value] of Object.entries(before)) byId("change").elements[name].value = value;
}

async function save() {
  const infohash = opened;
  const form = byId("change").elements;
  const now = Object.fromEntries(Object.keys(before).map((name) => [name, form[name].value.trim()]));
  const has = (name) => now[name] !== before[name];
  let notice = "";
  if (has("hops")) {
    const wish = await wishFor(Number(now.hops), Number(before.hops));
    if (!wish) return;
    notice = (await ask("PATCH", `api/torrents/${infohash}`, wish)).notice;
  }
  if (has("labels")) {
    const labels = now.labels.split(",").map((label) => label.trim()).filter((label) => label);
    await ask("PATCH", `api/torrents/${infohash}`, { labels });
  }
  const limits = {};
  if (has("down")) Object.assign(limits, limited("download", now.down));
  if (has("up")) Object.assign(limits, limited("upload", now.up));
  if (has("ratio")) {
    limits.seed_ratio_mode = now.ratio === "" ? GLOBAL : SINGLE;
    if (now.ratio !== "") limits.seed_ratio_limit = Number(now.ratio);
  }
  if (Object.keys(limits).length) await rpc("torrent_set", { ids: [infohash], ...limits });
  if (has("folder")) await rpc("torrent_set_location", { ids: [infohash], location: now.folder, move: true });
  before = now;
  say([t("saved"), notice].filter((text) => text).join(" "));
}

function limited(kind, text) {
  return text === "" ? { [`${kind}_limited`]: false } : { [`${kind}_limited`]: true, [`${kind}_limit`]: Number(text) };
}

/** Returns what is asked of the daemon, null if the owner thinks better of it: fewer hops have to be confirmed. */
async function wishFor(hops, hopsBefore) {
  if (hops > hopsBefore) return { hops };
  setText(byId("fewer-why"), t("hops.fewer", { hops, before: hopsBefore }) + (hops ? "" : ` ${t("hops.plain")}`));
  return await answer(byId("fewer")) === "fewer" ? { hops, confirm_fewer_hops: true } : null;
}
