// What is known of one download, and may be changed of it.

import { ask } from "./api.js";
import { byId, follow, make, setText } from "./dom.js";
import { bytes, percent, rate } from "./format.js";
import * as pieces from "./pieces.js";
import { rpc } from "./rpc.js";
import { act, answer, say } from "./say.js";
import { heard, t } from "./texts.js";

const AGAIN_MS = 2000;
const GLOBAL = 0;
const SINGLE = 1;
const PRIORITIES = ["off", "low", "normal", "high"];
const SET_BY = { low: "priority_low", normal: "priority_normal", high: "priority_high" };
const FIELDS = [
  "download_dir", "download_limit", "download_limited", "file_stats", "files", "hops", "labels", "peers",
  "piece_count", "pieces", "seed_ratio_limit", "seed_ratio_mode", "tracker_stats", "upload_limit", "upload_limited",
];

const STEP = 250; // so many files are shown at first, and more when asked for

const files = new Map();
let opened = null; // the infohash
let before = null; // what the form was filled with
let indexes = []; // of the files, as the daemon streams them
let most = STEP;
let isLooking = false;
let saves = 0; // what was asked for before the last of them tells of the time before
let known = new Map();

export function open(infohash) {
  opened = infohash;
  before = null;
  indexes = [];
  most = STEP;
  files.clear();
  byId("pieces").hidden = true;
  for (const id of ["files-of", "trackers-of", "peers-of"]) byId(id).replaceChildren();
  byId("change").reset();
  enable(false); // until it is filled
  byId("details").hidden = false;
  show();
  byId("details-title").focus();
  act(look);
}

function close() {
  const opener = document.querySelector(`[data-name="${opened}"]`);
  opened = null;
  byId("details").hidden = true;
  (opener ?? byId("downloads-title")).focus();
}

function enable(isEnabled) {
  byId("change-fields").disabled = !isEnabled;
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
  setText(byId("details-why"), heard(torrent.error || torrent.standstill));
}

export function wireDetails() {
  byId("details-close").addEventListener("click", close);
  byId("change").addEventListener("submit", (event) => {
    event.preventDefault();
    act(save);
  });
  byId("more-files").addEventListener("click", () => {
    most += STEP;
    act(look);
  });
  setInterval(() => opened && !isLooking && document.visibilityState === "visible" && look().catch(() => {}), AGAIN_MS);
}

async function look() {
  isLooking = true;
  try {
    await lookAt(opened);
  } finally {
    isLooking = false;
  }
}

async function lookAt(infohash) {
  const savesBefore = saves;
  const [torrent] = (await rpc("torrent_get", { ids: [infohash], fields: FIELDS })).torrents;
  if (torrent?.files?.length && !indexes.length) {
    indexes = (await ask("GET", `api/torrents/${infohash}/files`)).map((file) => file.index);
  }
  if (!torrent?.files || opened !== infohash) return; // gone, or on its way to another session
  if (saves === savesBefore) fill(torrent);
  pieces.show(byId("pieces"), torrent.pieces, torrent.piece_count);
  showFiles(infohash, torrent);
  showRows("trackers-of", torrent.tracker_stats ?? [], (tracker) => [
    tracker.announce, tracker.last_announce_result, String(tracker.last_announce_peer_count),
  ]);
  showRows("peers-of", torrent.peers ?? [], (peer) => [
    `${peer.address}:${peer.port}`, peer.client_name, percent(peer.progress),
    peer.rate_to_client ? rate(peer.rate_to_client) : "", peer.rate_to_peer ? rate(peer.rate_to_peer) : "",
  ]);
}

function showRows(id, entries, textsOf) {
  const body = byId(id);
  const span = body.closest("table").querySelectorAll("th").length;
  const rows = entries.length ? entries.map(textsOf) : [[t("details.none"), ...Array(span - 1).fill("")]];
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  while (body.rows.length < rows.length) body.append(make("tr", {}, ...rows[0].map(() => make("td"))));
  rows.forEach((texts, place) => texts.forEach((text, column) => setText(body.rows[place].cells[column], text)));
}

function showFiles(infohash, torrent) {
  const keys = torrent.files.map((_, place) => place).slice(0, most);
  follow(byId("files-of"), keys, files, (place) => makeFile(infohash, place));
  for (const place of keys) files.get(place).show(torrent.files[place], torrent.file_stats[place]);
  byId("files-unknown").hidden = keys.length > 0;
  byId("more-files").hidden = torrent.files.length <= most;
  setText(byId("more-files"), t("downloads.more", { count: Math.min(STEP, torrent.files.length - most) }));
}

function makeFile(infohash, place) {
  const link = make("a", { href: `stream/${infohash}/${indexes[place]}` });
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

/** Fills in what the owner has not changed. */
function fill(torrent) {
  const now = {
    hops: String(torrent.hops),
    labels: torrent.labels.filter((label) => !/^hops:/i.test(label)).join(", "),
    folder: torrent.download_dir,
    down: torrent.download_limited ? String(torrent.download_limit) : "",
    up: torrent.upload_limited ? String(torrent.upload_limit) : "",
    ratio: torrent.seed_ratio_mode === SINGLE ? String(torrent.seed_ratio_limit) : "",
  };
  const form = byId("change").elements;
  const isFirst = before === null;
  for (const [name, value] of Object.entries(now)) {
    if (isFirst || (form[name].value === before[name] && document.activeElement !== form[name])) form[name].value = value;
    else now[name] = before[name];
  }
  before = now;
  if (isFirst) enable(true);
}

async function save() {
  const infohash = opened;
  const was = before;
  const form = byId("change").elements;
  const now = Object.fromEntries(Object.keys(was).map((name) => [name, form[name].value.trim()]));
  const has = (name) => now[name] !== was[name];
  let wish = null;
  if (has("hops")) {
    wish = await wishFor(Number(now.hops), Number(was.hops));
    if (!wish) return;
  }
  enable(false);
  saves += 1;
  try {
    const notice = await send(infohash, now, has, wish);
    if (opened === infohash) before = now;
    say([t("saved"), notice].filter((text) => text).join(" "));
  } finally {
    saves += 1;
    enable(true);
  }
}

async function send(infohash, now, has, wish) {
  let notice = "";
  if (wish) notice = (await ask("PATCH", `api/torrents/${infohash}`, wish)).notice;
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
  return notice;
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
