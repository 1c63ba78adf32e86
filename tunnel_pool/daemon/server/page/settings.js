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
let before = null; // what the form was filled with
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

/** Fills in what holds, unless the owner has begun to change it. */
export async function fill() {
  const form = byId("settings").elements;
  if (before && Object.keys(before).some((name) => form[name].value !== before[name])) return;
  const shown = await rpc("session_get");
  const now = {};
  for (const [name, [field, enabled]] of Object.entries(LIMITS)) now[name] = shown[enabled] ? String(shown[field]) : "";
  for (const [name, field] of Object.entries(PLAIN)) now[name] = String(shown[field]);
  for (const [name, value] of Object.entries(now)) form[name].value = value;
  before = now;
}

async function save() {
  const form = byId("settings").elements;
  const wanted = {};
  const typed = (name) => (form[name].type === "number" ? Number(form[name].value) : form[name].value.trim());
  for (const name of Object.keys(before)) {
    if (form[name].value === before[name]) continue; // others may have changed it meanwhile
    if (name in PLAIN) wanted[PLAIN[name]] = typed(name);
    else {
      const [field, enabled] = LIMITS[name];
      wanted[enabled] = form[name].value.trim() !== "";
      if (wanted[enabled]) wanted[field] = typed(name);
    }
  }
  await rpc("session_set", wanted);
  before = null;
  await fill();
  say(t("saved"));
}
