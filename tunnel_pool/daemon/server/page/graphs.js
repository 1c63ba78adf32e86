// The last ten minutes, as two graphs with a caption that says the same in words.

import { byId, setText } from "./dom.js";
import { percent, rate } from "./format.js";
import { t } from "./texts.js";

const SECONDS = 600;
const samples = [];

export function begin(history) {
  samples.splice(0, samples.length, ...history);
}

export function add(sample, isSeen) {
  samples.push(sample);
  while (samples.length > SECONDS) samples.shift();
  if (!isSeen) return;
  draw("speed", ["down_bytes_per_s", "up_bytes_per_s"], (top) =>
    t("speed.caption", { down: rate(sample.down_bytes_per_s), up: rate(sample.up_bytes_per_s), top: rate(top) }));
  draw("cpu", ["main_cpu", "children_cpu"], (top) =>
    t("cpu.caption", { main: percent(sample.main_cpu), children: percent(sample.children_cpu), top: percent(top) }));
}

function draw(id, names, caption) {
  const top = Math.max(1e-9, ...samples.flatMap((sample) => names.map((name) => sample[name])));
  const svg = byId(id);
  names.forEach((name, place) => {
    const points = samples.map((sample, second) => {
      const x = 600 - (samples.length - 1 - second) * (600 / SECONDS);
      return `${x.toFixed(1)},${(116 - 112 * (sample[name] / top)).toFixed(1)}`;
    });
    svg.children[place] ?? svg.append(line(place ? "second" : "first"));
    svg.children[place].setAttribute("points", points.join(" "));
  });
  setText(byId(`${id}-caption`), caption(top));
}

function line(name) {
  const polyline = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  polyline.setAttribute("class", name);
  return polyline;
}
