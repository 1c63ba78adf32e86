// Which pieces of a download are there, as a picture.

import { setText } from "./dom.js";
import { t } from "./texts.js";

const WIDTH = 1000; // columns; each stands for as many pieces as have to share it

/** Returns for each column which share of its pieces is there; `have` is base64, a bit for each piece. */
function shares(have, count) {
  const bits = atob(have);
  const columns = Math.min(WIDTH, count);
  const there = new Array(columns).fill(0);
  const all = new Array(columns).fill(0);
  let total = 0;
  for (let piece = 0; piece < count; piece += 1) {
    const column = Math.floor((piece * columns) / count);
    const bit = (bits.charCodeAt(piece >> 3) >> (7 - (piece & 7))) & 1;
    all[column] += 1;
    there[column] += bit;
    total += bit;
  }
  return { shares: there.map((number, column) => number / all[column]), total };
}

/** Shows the pieces in a figure, whose SVG is made anew only if they have changed. */
export function show(figure, have, count) {
  const key = `${count} ${have}`;
  figure.hidden = !count;
  if (!count || figure.dataset.key === key) return;
  figure.dataset.key = key;
  const found = shares(have, count);
  setText(figure.querySelector("figcaption"), t("pieces.there", { there: found.total, all: count }));
  const svg = figure.querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${found.shares.length} 1`);
  svg.replaceChildren(...bars(found.shares));
}

/** Returns a rectangle for each run of columns of which about the same share is there. */
function bars(columns) {
  const made = [];
  const step = (share) => (share === 0 ? 0 : Math.max(0.2, Math.floor(share * 5) / 5)); // a little is not nothing
  for (let start = 0; start < columns.length;) {
    let end = start + 1;
    while (end < columns.length && step(columns[end]) === step(columns[start])) end += 1;
    if (columns[start]) made.push(bar(start, end - start, step(columns[start])));
    start = end;
  }
  return made;
}

function bar(x, width, opacity) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x, y: 0, width, height: 1, opacity })) element.setAttribute(name, value);
  return element;
}
