// What holds for all downloads; what is empty is no limit.

import { byId, setText } from "./dom.js";
import { bytes } from "./format.js";
import { rpc } from "./rpc.js";
import { act, say } from "./say.js";
import { t } from "./texts.js";

const AGAIN_MS = 30000;
// Each limit has a field of its own in session-get, and one that says whether it holds.
const LIMITS = {
  down: ["speed_limit_down", "speed_limit_down_enabled"],
  up: ["speed_limit_up", "speed_limit_up_enabled"],
  downloads: ["download_queue_size", "download_queue_enabled"],
  ratio: ["seed_ratio_limit", "seed_ratio_limited"],
  aside: ["incomplete_dir", "incomplete_dir_enabled"],
};
const PLAIN = { folder: "download_dir", slow_down: "alt_speed_down", slow_up: "alt_speed_up" };

export function wireSettings() {
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    act(save);
  });
  byId("slow").addEventListener("change", () => act(() => rpc("session_set", { alt_speed_enabled: byId("slow").checked })));
  setInterval(() => document.visibilityState === "visible" && look().catch(() => {}), AGAIN_MS);
}

/** Shows how much is free, and whether the slow mode is on. */
export async function look() {
  const shown = await rpc("session_get", { fields: ["download_dir_free_space", "alt_speed_enabled"] });
  const free = shown.download_dir_free_space;
  setText(byId("free"), free >= 0 ? bytes(free) : "–");
  byId("slow").checked = shown.alt_speed_enabled;
}

export async function fill() {
  const shown = await rpc("session_get");
  const form = byId("settings").elements;
  for (const [name, [field, enabled]] of Object.entries(LIMITS)) form[name].value = shown[enabled] ? shown[field] : "";
  for (const [name, field] of Object.entries(PLAIN)) form[name].value = shown[field];
}

async function save() {
  const form = byId("settings").elements;
  const wanted = {};
  for (const [name, [field, enabled]] of Object.entries(LIMITS)) {
    const text = form[name].value.trim();
    wanted[enabled] = text !== "";
    if (text !== "") wanted[field] = form[name].type === "number" ? Number(text) : text;
  }
  for (const [name, field] of Object.entries(PLAIN)) {
    wanted[field] = form[name].type === "number" ? Number(form[name].value) : form[name].value.trim();
  }
  await rpc("session_set", wanted);
  say(t("saved"));
}
