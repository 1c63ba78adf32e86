// Feeds, their articles, and the rules by which their torrents are added.

import { ask } from "./api.js";
import { byId, follow, make, setText } from "./dom.js";
import { act, answer, say } from "./say.js";
import { language, t } from "./texts.js";

const AGAIN_MS = 3000;
const MOST_ARTICLES = 250;

const feedRows = new Map();
const ruleRows = new Map();
let known = []; // the feeds
let opened = null; // the number of the feed whose articles are shown
let edited = {}; // the rule that was filled in, with what the form has no field for

export function wireFeeds() {
  byId("feed").addEventListener("submit", (event) => {
    event.preventDefault();
    act(addFeed);
  });
  byId("rule").addEventListener("submit", (event) => {
    event.preventDefault();
    act(saveRule);
  });
  byId("articles-close").addEventListener("click", closeArticles);
  setInterval(() => {
    if (!byId("panel-feeds").hidden && document.visibilityState === "visible") look().catch(() => {});
  }, AGAIN_MS);
}

export async function look() {
  const [feeds, rules] = await Promise.all([ask("GET", "api/feeds"), ask("GET", "api/rules")]);
  known = feeds;
  showFeeds();
  showRules(rules);
  if (opened !== null) await showArticles();
}

const date = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString(language, { dateStyle: "short", timeStyle: "short" }) : "–");

function showFeeds() {
  const byNumber = new Map(known.map((feed) => [feed.number, feed]));
  follow(byId("feeds-of"), [...byNumber.keys()], feedRows, makeFeed);
  for (const [number, feed] of byNumber) feedRows.get(number).show(feed);
  byId("feeds-table").hidden = !known.length;
  byId("feeds-none").hidden = known.length > 0;
  offerFeeds();
}

/** Has the rule's form offer the feeds that there are. */
function offerFeeds() {
  const select = byId("rule").elements.feeds;
  const offered = known.map((feed) => `${feed.number} ${feed.name}`).join("\n");
  if (select.dataset.offered === offered) return;
  const chosen = new Set([...select.selectedOptions].map((option) => option.value));
  select.replaceChildren(...known.map((feed) => make("option", { value: feed.number }, feed.name)));
  for (const option of select.options) option.selected = chosen.has(option.value);
  select.dataset.offered = offered;
}

function makeFeed(number) {
  const name = make("button", { type: "button", class: "name", onclick: () => act(() => openArticles(number)) });
  const problem = make("span", { class: "why" });
  const cells = Array.from({ length: 3 }, () => make("td"));
  const buttons = [["refresh", refresh], ["remove", removeFeed]].map(([word, work]) => make(
    "button", { type: "button", onclick: () => act(() => work(number)) }, t(word),
  ));
  const element = make("tr", {},
    make("th", { scope: "row" }, name, problem), ...cells, make("td", {}, make("span", { class: "buttons" }, ...buttons)));

  function showFeed(feed) {
    setText(name, feed.name);
    setText(problem, feed.problem);
    for (const [place, word] of ["refresh", "remove"].entries()) {
      buttons[place].setAttribute("aria-label", `${t(word)}: ${feed.name}`);
    }
    const texts = [
      t("feeds.counts", { count: feed.articles, unread: feed.unread }),
      feed.is_being_read ? t("feeds.reading") : date(feed.read_s), feed.hops ? String(feed.hops) : t("feeds.direct"),
    ];
    texts.forEach((text, place) => setText(cells[place], text));
  }
  return { element, show: showFeed };
}

async function addFeed() {
  const { url, name, hops } = byId("feed").elements;
  const wish = { url: url.value.trim(), name: name.value.trim() };
  if (hops.value) wish.hops = Number(hops.value);
  const feed = await ask("POST", "api/feeds", wish);
  byId("feed").reset();
  await look();
  say(t("add.done", { name: feed.name }));
}

async function refresh(number) {
  await ask("POST", `api/feeds/${number}/refresh`);
  await look();
}

/** Asks first whether what is named is to be removed. */
async function isMeant(name) {
  setText(byId("forgetting-title"), t("forget.title", { name }));
  return await answer(byId("forgetting")) === "remove";
}

async function removeFeed(number) {
  const feed = known.find((each) => each.number === number);
  if (!feed || !await isMeant(feed.name)) return;
  await ask("DELETE", `api/feeds/${number}`);
  if (opened === number) closeArticles();
  await look();
  byId("feeds-title").focus();
}

// Articles

async function openArticles(number) {
  opened = number;
  byId("articles-of").replaceChildren();
  await showArticles();
  byId("articles").hidden = false;
  byId("articles-title").focus();
}

function closeArticles() {
  opened = null;
  byId("articles").hidden = true;
  byId("feeds-title").focus();
}

async function showArticles() {
  const feed = known.find((each) => each.number === opened);
  if (!feed) {
    closeArticles();
    return;
  }
  const articles = (await ask("GET", `api/feeds/${feed.number}/articles`)).slice(0, MOST_ARTICLES);
  setText(byId("articles-title"), t("articles", { name: feed.title || feed.name }));
  const body = byId("articles-of");
  while (body.rows.length > articles.length) body.lastElementChild.remove();
  while (body.rows.length < articles.length) body.append(make("tr", {}, make("th", { scope: "row" }), make("td"), make("td")));
  articles.forEach((article, place) => {
    const known = article.added_by ? t("article.taken", { name: article.added_by }) : "";
    const state = article.problem || known || t(article.is_read ? "article.read" : "article.new");
    [article.title, date(article.published_s), state].forEach((text, column) => setText(body.rows[place].cells[column], text));
  });
}

// Rules

function showRules(rules) {
  const byName = new Map(rules.map((rule) => [rule.name, rule]));
  follow(byId("rules-of"), [...byName.keys()], ruleRows, makeRule);
  for (const [name, rule] of byName) ruleRows.get(name).show(rule);
  byId("rules-table").hidden = !rules.length;
  byId("rules-none").hidden = rules.length > 0;
}

function makeRule(ruleName) {
  let shown = null;
  const name = make("button", { type: "button", class: "name", onclick: () => fillIn(shown) }, ruleName);
  const cells = Array.from({ length: 3 }, () => make("td"));
  const remove = make("button", { type: "button", onclick: () => act(() => removeRule(ruleName)) }, t("remove"));
  remove.setAttribute("aria-label", `${t("remove")}: ${ruleName}`);
  const element = make("tr", {}, make("th", { scope: "row" }, name), ...cells, make("td", {}, remove));

  function showRule(rule) {
    shown = rule;
    const texts = [rule.must || t("all"), rule.must_not, rule.enabled ? date(rule.matched_s) : t("rule.off")];
    texts.forEach((text, place) => setText(cells[place], text));
  }
  return { element, show: showRule };
}

/** Fills the form in with a rule that there is. */
function fillIn(rule) {
  const form = byId("rule").elements;
  edited = rule;
  for (const name of ["name", "must", "must_not", "episodes"]) form[name].value = rule[name];
  for (const name of ["enabled", "is_regex", "once"]) form[name].checked = rule[name];
  form.labels.value = rule.labels.join(", ");
  form.hops.value = rule.hops === null ? "" : String(rule.hops);
  form.folder.value = rule.folder ?? "";
  for (const option of form.feeds.options) option.selected = Boolean(rule.feeds?.includes(Number(option.value)));
  form.name.focus();
}

async function saveRule() {
  const form = byId("rule").elements;
  const name = form.name.value.trim();
  const rule = edited.name === name
    ? { ignore_days: edited.ignore_days, priority: edited.priority, stopped: edited.stopped } : {};
  for (const field of ["must", "must_not", "episodes"]) rule[field] = form[field].value.trim();
  for (const field of ["enabled", "is_regex", "once"]) rule[field] = form[field].checked;
  rule.labels = form.labels.value.split(",").map((label) => label.trim()).filter((label) => label);
  rule.hops = form.hops.value ? Number(form.hops.value) : null;
  rule.folder = form.folder.value.trim() || null;
  const feeds = [...form.feeds.selectedOptions].map((option) => Number(option.value));
  const hadNone = edited.name === name && edited.feeds?.length === 0; // which is not all
  rule.feeds = feeds.length || hadNone ? feeds : null;
  await ask("PUT", `api/rules/${encodeURIComponent(name)}`, rule);
  edited = {};
  byId("rule").reset();
  await look();
  say(t("saved"));
}

async function removeRule(name) {
  if (!await isMeant(name)) return;
  await ask("DELETE", `api/rules/${encodeURIComponent(name)}`);
  await look();
  byId("rules-title").focus();
}
