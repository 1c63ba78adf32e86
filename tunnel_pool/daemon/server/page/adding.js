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
    if (event.target.closest?.("input, textarea") && !event.dataTransfer.files.length) return; // text for that field
    event.preventDefault();
    const links = event.dataTransfer.getData("text").split(/\s+/);
    act(() => addAll(links, event.dataTransfer.files, byId("hops").value));
  });
}

async function addFromForm() {
  const links = byId("source").value.split(/\s+/);
  const files = [...byId("files").files];
  const hops = byId("hops").value;
  const isSomething = links.some((link) => link) || files.length;
  if (isSomething) byId("add").reset();
  try {
    await addAll(links, files, hops);
  } catch (error) {
    if (!byId("source").value) byId("source").value = links.join(" ");
    throw error;
  }
}

/** Adds each, whatever becomes of the others; throws what failed. */
async function addAll(links, files, hops) {
  const wish = hops === "" ? {} : { hops: Number(hops) };
  const bodies = links.filter((link) => link).map((source) => ({ source, ...wish }));
  for (const file of files) bodies.push({ metainfo: await inBase64(file), ...wish });
  if (!bodies.length) throw new Error(t("add.nothing"));
  const failed = [];
  for (const body of bodies) {
    try {
      const added = await ask("POST", "api/torrents", body);
      say(t(added.new ? "add.done" : "add.there", { name: added.torrent.name }));
    } catch (error) {
      failed.push(error.message);
    }
  }
  if (failed.length) throw new Error(failed.join("; "));
}

async function inBase64(file) {
  const data = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < data.length; start += 32768) {
    text += String.fromCharCode(...data.subarray(start, start + 32768));
  }
  return btoa(text);
}
