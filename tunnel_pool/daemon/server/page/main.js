// The page of a running daemon: listens to its events, and asks for changes.

import { ask, listen } from "./api.js";
import { byId, make, setText } from "./dom.js";
import { rate } from "./format.js";
import * as graphs from "./graphs.js";
import * as pool from "./pool.js";
import * as torrents from "./torrents.js";

const MAX_HAPPENINGS = 200;
let isFirst = true;

function showState(state) {
  const { status } = state;
  setText(byId("down"), rate(status.down_bytes_per_s));
  setText(byId("up"), rate(status.up_bytes_per_s));
  setText(byId("circuits-ready"), `${status.circuits_ready} ready`);
  setText(byId("candidates"), String(status.candidates));
  setText(byId("exits"), String(status.exits));
  setText(byId("way-out"), status.way_out);
  setText(byId("version"), `tunnel-pool ${status.version}`);
  pool.show(state);
  graphs.add(state.sample);
}

function showHappening({ kind, what, now }) {
  const list = byId("happenings");
  const name = kind === "torrent" ? what.slice(0, 8) : what;
  list.prepend(make("li", {}, `${new Date().toLocaleTimeString()} ${kind} ${name}: ${now.toLowerCase()}`));
  while (list.children.length > MAX_HAPPENINGS) list.lastChild.remove();
}

function onConnection(isThere) {
  setText(byId("connection"), isThere ? "" : "The daemon does not answer; what is shown is old.");
  isFirst = true; // the first of its events tells all
}

function wireTheme() {
  const root = document.documentElement;
  const saved = localStorage.getItem("theme");
  if (saved) root.dataset.theme = saved;
  byId("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}

wireTheme();
torrents.wireAdding();
pool.wireScaling();
await torrents.act(async () => graphs.begin(await ask("GET", "api/history")));
listen({
  state: showState,
  happening: showHappening,
  torrents: (data) => {
    torrents.change(data, isFirst);
    isFirst = false;
  },
}, onConnection);
