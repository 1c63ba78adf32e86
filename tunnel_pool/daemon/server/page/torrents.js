// The list of downloads.

import { ask } from "./api.js";
import { byId, follow, make, setText } from "./dom.js";
import { bytes, duration, percent, plural, rate } from "./format.js";

const torrents = new Map();
const items = new Map();

export function change({ changed, removed }, isFirst) {
  if (isFirst) torrents.clear();
  for (const infohash of removed) torrents.delete(infohash);
  for (const torrent of changed) torrents.set(torrent.infohash, torrent);
  const ordered = [...torrents.values()].sort((one, other) => one.position - other.position);
  follow(byId("torrents"), ordered.map((torrent) => torrent.infohash), items, makeItem);
  for (const torrent of ordered) items.get(torrent.infohash).show(torrent);
  byId("none").hidden = ordered.length > 0;
}

function makeItem(infohash) {
  const name = make("h3");
  const bar = make("progress", { max: 1 });
  const facts = Array.from({ length: 6 }, () => make("span"));
  const failed = make("p", { class: "failed" });
  const pause = make("button", { type: "button", onclick: () => act(() => toggle(infohash)) });
  const remove = make("button", { type: "button", onclick: () => act(() => askToRemove(infohash)) }, "Remove");
  const files = make("ul");
  const details = make("details", { ontoggle: () => details.open && act(() => showFiles(infohash, files)) });
  details.append(make("summary", {}, "Files"), files);
  const row = make("div", { class: "row" }, name, make("div", { class: "buttons" }, pause, remove));
  const element = make("li", {}, row, bar, make("div", { class: "facts" }, ...facts), failed, details);

  function show(torrent) {
    setText(name, torrent.name);
    bar.value = torrent.progress;
    bar.setAttribute("aria-label", `${torrent.name}: ${percent(torrent.progress)}`);
    const isRunning = torrent.down_bytes_per_s || torrent.up_bytes_per_s;
    const left = torrent.eta_s === null ? "" : `${duration(torrent.eta_s)} left`;
    const texts = [
      `${torrent.state}, ${percent(torrent.progress)}`,
      torrent.size_bytes ? bytes(torrent.size_bytes) : "size not known yet",
      torrent.hops ? `anonymous, ${plural(torrent.hops, "hop")}` : "plain, not anonymous",
      plural(torrent.peers, "peer") + (torrent.hidden_peers ? `, ${torrent.hidden_peers} hidden` : ""),
      isRunning ? `${rate(torrent.down_bytes_per_s)} down, ${rate(torrent.up_bytes_per_s)} up` : "",
      left,
    ];
    texts.forEach((text, place) => setText(facts[place], text));
    setText(failed, torrent.error || torrent.standstill);
    setText(pause, stands(torrent) ? "Resume" : "Pause");
    pause.setAttribute("aria-label", `${pause.textContent} ${torrent.name}`);
    remove.setAttribute("aria-label", `Remove ${torrent.name}`);
    element.dataset.state = torrent.state;
  }
  return { element, show };
}

const stands = (torrent) => torrent.state === "stopped" || torrent.state === "failed";

const toggle = (infohash) =>
  ask("PATCH", `api/torrents/${infohash}`, { stopped: !stands(torrents.get(infohash)) });

async function showFiles(infohash, list) {
  const files = await ask("GET", `api/torrents/${infohash}/files`);
  const rows = files.map((file) => {
    const link = make("a", { href: `stream/${infohash}/${file.index}` }, file.path);
    return make("li", {}, link, ` ${bytes(file.done_bytes)} of ${bytes(file.size_bytes)}${file.wanted ? "" : ", unwanted"}`);
  });
  list.replaceChildren(...(rows.length ? rows : [make("li", {}, "not known yet")]));
}

async function askToRemove(infohash) {
  const dialog = byId("removing");
  setText(byId("removing-name"), torrents.get(infohash).name);
  byId("removing-files").checked = false;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue === "remove") {
    await ask("DELETE", `api/torrents/${infohash}?files=${byId("removing-files").checked}`);
  }
}

export function say(text) {
  setText(byId("message"), text);
}

/** Does it, and says why when it can't be done. */
export async function act(work) {
  try {
    await work();
  } catch (error) {
    say(error.message);
  }
}

export function wireAdding() {
  byId("add").addEventListener("submit", (event) => {
    event.preventDefault();
    act(addFromForm);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  for (const name of ["dragleave", "drop"]) {
    addEventListener(name, () => document.body.classList.remove("dropping"));
  }
  addEventListener("drop", (event) => {
    event.preventDefault();
    act(() => addAll(event.dataTransfer.getData("text").split(/\s+/), event.dataTransfer.files));
  });
}

async function addFromForm() {
  await addAll(byId("source").value.split(/\s+/), byId("files").files);
  byId("add").reset();
}

async function addAll(links, files) {
  const chosen = byId("hops").value;
  const wish = chosen === "" ? {} : { hops: Number(chosen) };
  const bodies = links.filter((link) => link).map((source) => ({ source, ...wish }));
  for (const file of files) bodies.push({ metainfo: await inBase64(file), ...wish });
  if (!bodies.length) throw new Error("Give a magnet link, an infohash or a .torrent file.");
  for (const body of bodies) {
    const added = await ask("POST", "api/torrents", body);
    say(added.new ? `Added: ${added.torrent.name}` : `It was there already: ${added.torrent.name}`);
  }
}

async function inBase64(file) {
  const data = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < data.length; start += 32768) {
    text += String.fromCharCode(...data.subarray(start, start + 32768));
  }
  return btoa(text);
}
