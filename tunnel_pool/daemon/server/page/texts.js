// All that the page says, in each language (texts-*.js). `{name}` stands for a value; a key ending in `.one` is for the
// number 1. What the daemon says itself is English: keys that begin with `heard.` have its sentences, in English as it
// says them, with `(s)` where there may be an s.

import de from "./texts-de.js";
import en from "./texts-en.js";
import fr from "./texts-fr.js";

export const LANGUAGES = { en: ["English", en], de: ["Deutsch", de], fr: ["Français", fr] };

export const language = chosen();

function chosen() {
  const wanted = [localStorage.getItem("language"), ...navigator.languages].filter((name) => name);
  return wanted.map((name) => name.slice(0, 2)).find((name) => name in LANGUAGES) ?? "en";
}

/** Returns the text of a key; with `count` 1, that of the key with `.one`, if there is one. */
export function t(key, values = {}) {
  const texts = LANGUAGES[language][1];
  const text = (values.count === 1 && texts[`${key}.one`]) || texts[key] || en[key] || key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Puts the texts of this language into the elements that name their keys. */
export function translate(root) {
  document.documentElement.lang = language;
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]")) {
    element.setAttribute("aria-label", t(element.dataset.tLabel));
  }
}

// How the daemon's sentences are recognized, and the keys of what they mean.
const heardBefore = Object.entries(en).filter(([key]) => key.startsWith("heard.")).map(([key, sentence]) => {
  const escaped = sentence.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll("\\(s\\)", "s?");
  return [key, new RegExp(`^${escaped.replace(/\\{(\w+)\\}/g, "(?<$1>.+?)")}$`)];
});

/** Returns what the daemon has said in the page's language; what is not known stays as it is. */
export function heard(sentence) {
  if (language === "en") return sentence;
  for (const [key, pattern] of heardBefore) {
    const found = pattern.exec(sentence);
    if (found) return t(key, found.groups);
  }
  return sentence;
}
