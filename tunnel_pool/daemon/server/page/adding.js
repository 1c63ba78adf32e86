// Adding by link, by file, and by what is dropped on the page.

import { ask } from "./api.js";
import { byId } from "./dom.js";
import { act, say } from "./say.js";
import { t } from "./texts.js";

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
  if (!bodies.length) throw new Error(t("add.nothing"));
  for (const body of bodies) {
    const added = await ask("POST", "api/torrents", body);
    say(t(added.new ? "add.done" : "add.there", { name: added.torrent.name }));
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
