// Numbers as people read them.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(number) {
  let unit = 0;
  while (number >= 1000 && unit < UNITS.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit ? number.toFixed(number < 10 ? 2 : 1) : Math.round(number)} ${UNITS[unit]}`;
}

export const rate = (number) => `${bytes(number)}/s`;

export const percent = (share) => `${(100 * share).toFixed(share < 1 && share > 0 ? 1 : 0)} %`;

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}
