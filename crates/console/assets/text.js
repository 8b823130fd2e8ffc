// Words for lengths of time, numbers and people.

/** A length of time, as the command shows it: at most two units. */
export function length(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)}ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 10 && ms % 1000 >= 100) return `${(Math.floor(ms / 100) / 10).toFixed(1)}s`;
  if (seconds < 60) return `${seconds}s`;
  const two = (large, unit, small, sub) => (small ? `${large}${unit}${String(small).padStart(2, "0")}${sub}` : `${large}${unit}`);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return two(minutes, "m", seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return two(hours, "h", minutes % 60, "m");
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** The same in whole seconds, for what ticks. */
export function ticking(ms) {
  return ms < 1000 ? "0s" : length(Math.floor(ms / 1000) * 1000);
}

/** A length of time at a glance: one unit. */
export function about(ms) {
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]]) {
    if (ms >= size) return `${(ms / size).toFixed(ms / size < 10 && unit !== "s" ? 1 : 0).replace(/\.0$/, "")} ${unit}`;
  }
  return `${Math.round(ms)} ms`;
}

export function count(number) {
  return number.toLocaleString("en");
}

/** `1 waiter`, `2 waiters`. */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** The time of day. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Program, process and host. A caller of the HTTP API has no process id. */
export function who(person) {
  return person.pid ? `${person.program}[${person.pid}]@${person.host}` : `${person.program}@${person.host}`;
}

const KINDS = { mutex: "Mutex", rw_lock: "Read-write", semaphore: "Semaphore", election: "Election", latch: "Latch" };

export function kind(word) {
  return KINDS[word] ?? word;
}

const number = (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`;
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs}/gu;

/**
 * Marks that change direction or cannot be seen would let one name pass for another, so they are shown by their numbers. So
 * are blanks at the ends and all but the first of several.
 */
export function plain(text) {
  return String(text).replace(HIDDEN, number).replace(/^ | $|(?<= ) /g, number);
}
