// The page of a running daemon: listens to its events, and asks for changes.

import { wireAdding } from "./adding.js";
import { ask, listen } from "./api.js";
import { wireDetails } from "./details.js";
import { byId, make, setText } from "./dom.js";
import * as feeds from "./feeds.js";
import { rate } from "./format.js";
import * as graphs from "./graphs.js";
import * as pool from "./pool.js";
import { act } from "./say.js";
import * as settings from "./settings.js";
import * as table from "./table.js";
import { wireTabs } from "./tabs.js";
import { LANGUAGES, heard, language, t, translate } from "./texts.js";

const MAX_HAPPENINGS = 200;
let isFirst = true;

function showState(state) {
  const { status } = state;
  setText(byId("down"), rate(status.down_bytes_per_s));
  setText(byId("up"), rate(status.up_bytes_per_s));
  setText(byId("circuits-ready"), t("circuits.ready", { count: status.circuits_ready }));
  setText(byId("candidates"), String(status.candidates));
  setText(byId("exits"), String(status.exits));
  setText(byId("way-out"), heard(status.way_out));
  setText(byId("version"), `tunnel-pool ${status.version}`);
  if (!byId("panel-pool").hidden) pool.show(state);
  graphs.add(state.sample, !byId("panel-pool").hidden);
}

function showHappening({ kind, what, now }) {
  const list = byId("happenings");
  const name = kind === "torrent" ? what.slice(0, 8) : what;
  const state = { gone: t("happened.gone") }[now] ?? (kind === "torrent" ? t(`state.${now}`) : now.toLowerCase());
  const time = new Date().toLocaleTimeString(language);
  list.prepend(make("li", {}, `${time} ${t(`happened.${kind}`)} ${name}: ${state}`));
  while (list.children.length > MAX_HAPPENINGS) list.lastChild.remove();
}

function onConnection(isThere) {
  setText(byId("connection"), isThere ? "" : t("connection.lost"));
  document.body.classList.toggle("stale", !isThere);
  if (isThere) act(async () => graphs.begin(await ask("GET", "api/history")));
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

function wireLanguage() {
  for (const [name, [itself]] of Object.entries(LANGUAGES)) {
    byId("language").append(make("option", { value: name, lang: name }, itself));
  }
  byId("language").value = language;
  byId("language").addEventListener("change", () => {
    localStorage.setItem("language", byId("language").value);
    location.reload();
  });
}

translate(document);
wireTheme();
wireLanguage();
wireAdding();
table.wireTable();
wireDetails();
pool.wireScaling();
settings.wireSettings();
feeds.wireFeeds();
const onShown = { settings: settings.fill, feeds: feeds.look };
wireTabs((name) => onShown[name] && act(onShown[name]));
await act(settings.look);
listen({
  state: showState,
  happening: showHappening,
  torrents: (data) => {
    table.change(data, isFirst);
    isFirst = false;
  },
}, onConnection);
