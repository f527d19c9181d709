// Token chips of the reader's own text: byte-pair encoding in the browser, equal to tiktoken's.
//
// gptbook.display.chips publishes <token-chips data-about="...">: a text, the files that hold the vocabularies, example
// texts, and inside of it the chips of the text, which stand where no script runs. A file is loaded when the reader
// first changes the text, and not before. A custom element starts wherever it comes into the page, so the theme's way
// to swap pages needs nothing more.

const MOST_CHARACTERS = 20_000;
const MOST_CHIPS = 1_000;
const PAUSE = 250; // milliseconds after the last key

// Where a text is cut before anything is merged: tiktoken's patterns without what JavaScript lacks. A possessive
// quantifier matters nowhere here, since what follows it cannot match what it would give back. \s means another set of
// characters in JavaScript, and (?i:s) matches ſ as well.
const W = String.raw`\p{White_Space}`;
const ENDING = "'(?:[sSſdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])";
const UPPER = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`;
const LOWER = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
const BEFORE = String.raw`[^\r\n\p{L}\p{N}]?`;
const GPT2 = String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^${W}\p{L}\p{N}]+|${W}+(?!\P{White_Space})|${W}`;
const SPLITS = {
  gpt2: GPT2,
  r50k_base: GPT2,
  cl100k_base:
    String.raw`${ENDING}|${BEFORE}\p{L}+|\p{N}{1,3}| ?[^${W}\p{L}\p{N}]+[\r\n]*|${W}+$|${W}*[\r\n]|` +
    String.raw`${W}+(?!\P{White_Space})|${W}`,
  o200k_base:
    String.raw`${BEFORE}${UPPER}*${LOWER}+(?:${ENDING})?|${BEFORE}${UPPER}+${LOWER}*(?:${ENDING})?|\p{N}{1,3}|` +
    String.raw` ?[^${W}\p{L}\p{N}]+[\r\n/]*|${W}*[\r\n]+|${W}+(?!\P{White_Space})|${W}+`,
};

const utf8 = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });

// The ranks of a vocabulary's tokens. Bytes are kept as a string with one character for each byte.
export class Vocabulary {
  // content: for each rank, which is also the id, one byte with the token's length, and the token.
  constructor(name, content, { bytes, count }) {
    if (content.byteLength !== bytes) throw new Error(`it has ${content.byteLength} bytes of ${bytes}`);
    this.split = new RegExp(SPLITS[name], "gu");
    this.ranks = new Map();
    this.longest = 0;
    const all = new Uint8Array(content);
    let at = 0;
    for (let rank = 0; rank < count && at < bytes; rank++) {
      const end = at + 1 + all[at];
      this.longest = Math.max(this.longest, all[at]);
      this.ranks.set(String.fromCharCode(...all.subarray(at + 1, end)), rank);
      at = end;
    }
    const single = Array.from({ length: 256 }, (_, byte) => this.ranks.has(String.fromCharCode(byte)));
    if (at !== bytes || this.ranks.size !== count || single.includes(false)) throw new Error("it is damaged");
  }

  rank(bytes) {
    return bytes.length <= this.longest ? this.ranks.get(bytes) : undefined;
  }
}

// The tokens of a text, [[bytes, id], ...]. Special tokens never come from plain text.
export function encode(text, vocabulary) {
  const tokens = [];
  for (const [chunk] of text.matchAll(vocabulary.split)) {
    const bytes = byteString(chunk);
    const whole = vocabulary.rank(bytes);
    if (whole === undefined) merge(bytes, vocabulary, tokens);
    else tokens.push([bytes, whole]);
  }
  return tokens;
}

function byteString(text) {
  let bytes = "";
  for (const byte of utf8.encode(text)) bytes += String.fromCharCode(byte);
  return bytes;
}

// Joins the two neighbours of lowest rank, the leftmost of equal ones, until no two make a token. The heap holds pairs
// as rank * ROOM + start, so that N bytes take N log N steps, also where a text is one long chunk.
const ROOM = 2 ** 32;

function merge(bytes, vocabulary, tokens) {
  const end = bytes.length;
  const next = Int32Array.from({ length: end + 1 }, (_, i) => i + 1); // part i goes from i to next[i]; 0: merged away
  const previous = Int32Array.from({ length: end + 1 }, (_, i) => i - 1);
  const heap = new Heap();
  const pair = (i) => (next[i] < end ? vocabulary.rank(bytes.slice(i, next[next[i]])) : undefined);
  const offer = (i) => {
    const rank = i < 0 ? undefined : pair(i);
    if (rank !== undefined) heap.push(rank * ROOM + i);
  };
  for (let i = 0; i < end; i++) offer(i);
  while (heap.size) {
    const least = heap.pop();
    const i = least % ROOM;
    if (next[i] === 0 || pair(i) !== (least - i) / ROOM) continue; // one of the two has been merged otherwise
    const gone = next[i];
    next[i] = next[gone];
    previous[next[i]] = i;
    next[gone] = 0;
    offer(previous[i]);
    offer(i);
  }
  for (let i = 0; i < end; i = next[i]) {
    const token = bytes.slice(i, next[i]);
    tokens.push([token, vocabulary.rank(token)]);
  }
}

class Heap {
  items = [];

  get size() {
    return this.items.length;
  }

  push(item) {
    const { items } = this;
    let i = items.push(item) - 1;
    for (let up; i > 0 && items[(up = (i - 1) >> 1)] > item; i = up) items[i] = items[up];
    items[i] = item;
  }

  pop() {
    const { items } = this;
    const least = items[0];
    const item = items.pop();
    if (items.length) {
      let i = 0;
      for (let down; (down = 2 * i + 1) < items.length; i = down) {
        if (items[down + 1] < items[down]) down++;
        if (items[down] >= item) break;
        items[i] = items[down];
      }
      items[i] = item;
    }
    return least;
  }
}

const loading = new Map(); // file -> promise of its vocabulary, shared by all elements and pages

function load(name, about) {
  if (!loading.has(about.file)) {
    const fetched = async () => {
      const answer = await fetch(new URL(`data/${about.file}`, import.meta.url));
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      return new Vocabulary(name, await answer.arrayBuffer(), about);
    };
    const promise = fetched();
    loading.set(about.file, promise);
    promise.catch(() => loading.delete(about.file)); // so that the next key tries again
  }
  return loading.get(about.file);
}

// What a token shows, the same as gptbook.display.pieces: [[sign, kind], ...].

const GAPS = { " ": ["␣", "blank"], "\n": ["↵", "line end"], "\t": ["⇥", "tab"] };
const NAMES = Object.fromEntries(Object.values(GAPS));
const MOST_SIGNS = 8;

function pieces(token) {
  const bytes = Uint8Array.from(token, (character) => character.charCodeAt(0));
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    let character = "";
    let size = 1;
    for (; size <= 4 && !character; size++) character = decoded(bytes.subarray(at, at + size));
    size = character ? size - 1 : 1;
    let [sign, kind] = [character, ""];
    if (!character) [sign, kind] = [hex(bytes[at], 2), "byte"];
    else if (Object.hasOwn(GAPS, character)) [sign, kind] = [GAPS[character][0], "gap"];
    else if (/[\p{C}\p{Z}\ufe00-\ufe0f]/u.test(character)) [sign, kind] = [`U+${hex(character.codePointAt(0), 4)}`, "gap"];
    else if (found.at(-1)?.[1] === "") sign = found.pop()[0] + sign;
    else if (/\p{M}/u.test(character)) sign = "\u25cc" + sign; // a mark that stands on nothing
    found.push([sign, kind]);
    at += size;
  }
  return found;
}

function decoded(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return "";
  }
}

function hex(number, digits) {
  return number.toString(16).toUpperCase().padStart(digits, "0");
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A token as it is seen, and in words where they differ; `split` are the characters of which it has a part.
function code(token, split) {
  const made = element("code");
  const heard = [];
  const parts = pieces(token);
  for (let i = 0, n; i < parts.length; i += n) {
    const [sign, kind] = parts[i];
    for (n = 1; parts[i + n]?.[0] === sign && parts[i + n][1] === kind; n++);
    if (kind === "gap") {
      const many = n > MOST_SIGNS ? `${sign}×${n}` : sign.repeat(n);
      made.append(element("span", { className: "gap" }, many));
      const name = NAMES[sign] ?? sign;
      heard.push(n === 1 ? name : `${n} ${name}s`);
    } else if (kind === "byte") {
      for (let k = 0; k < n; k++) made.append(element("span", { className: "byte" }, sign));
      heard.push(...Array(n).fill(`byte ${sign}`));
    } else {
      made.append(sign);
      heard.push(sign);
    }
  }
  if (parts.every(([, kind]) => kind === "")) return made;
  let words = heard.join(" ");
  made.setAttribute("role", "img");
  if (split.length) words += `, part of ${split.join(" and ")}`;
  made.setAttribute("aria-label", words);
  if (split.length) made.title = `part of ${split.join(" and ")}`;
  return made;
}

function chips(text, tokens) {
  const characters = [];
  for (const character of text) {
    const begin = characters.at(-1)?.[2] ?? 0;
    const point = character.codePointAt(0);
    const size = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    characters.push([character, begin, begin + size]);
  }
  const made = [];
  let [start, at] = [0, 0];
  for (const [token, id] of tokens) {
    const stop = start + token.length;
    const split = [];
    while (at < characters.length && characters[at][2] <= start) at++;
    for (let i = at; i < characters.length && characters[i][1] < stop; i++)
      if (characters[i][1] < start || characters[i][2] > stop) split.push(characters[i][0]);
    start = stop;
    made.push(element("li", { className: `c${id % 6}` }, code(token, split), element("small", {}, String(id))));
  }
  return made;
}

const count = (number, unit) => `${number.toLocaleString("en")} ${unit}${number === 1 ? "" : "s"}`;

let made = 0; // so that the ids of several elements on a page differ

class TokenChips extends HTMLElement {
  connectedCallback() {
    if (this.area) return; // moved, and not new
    const { text, tables, examples } = JSON.parse(this.dataset.about);
    const id = `token-chips-${made++}`;
    this.tables = tables;
    this.vocabularies = {}; // name -> what belongs to it
    this.size = this.querySelector(".size");
    this.size.setAttribute("role", "status");
    const group = element("fieldset", {}, element("legend", {}, "Vocabulary"));
    for (const section of this.querySelectorAll("section")) {
      const { name } = section.dataset;
      const list = section.querySelector("ol");
      const radio = element("input", { type: "radio", name: id, value: name });
      const counted = element("span", { className: "tokens" });
      const note = element("p", { className: "note", hidden: true });
      section.insertBefore(note, list);
      radio.addEventListener("change", () => this.draw());
      group.append(element("label", {}, radio, element("span", { className: "name" }, name), counted));
      this.vocabularies[name] = { section, list, radio, counted, note, still: [...list.children] };
    }
    this.names = Object.keys(this.vocabularies);
    this.vocabularies[this.names[0]].radio.checked = true;

    this.area = element("textarea", { id, rows: 3, spellcheck: false, autocomplete: "off" });
    this.area.value = text;
    this.text = this.area.value; // with the line ends of a text area
    this.note = element("p", { className: "note", hidden: true });
    const changed = (pause) => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.update(), pause);
    };
    this.area.addEventListener("input", () => changed(PAUSE));
    const row = element("div", { className: "row" });
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", "Example texts");
    for (const [name, example] of Object.entries({ "first text": text, ...examples })) {
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => {
        this.area.value = example;
        changed(0);
      });
      row.append(button);
    }
    const controls = element("div", { className: "controls" });
    if (Object.keys(tables).length)
      controls.append(element("label", { className: "title", htmlFor: id }, "Your own text"), this.area, row, this.note);
    this.prepend(controls);
    this.size.after(group);
    this.dataset.ready = "";
    this.update();
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
  }

  get chosen() {
    return this.names.find((name) => this.vocabularies[name].radio.checked);
  }

  // Encode what stands in the text area with each vocabulary, the chosen one first.
  async update() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const whole = this.area.value;
    const still = whole === this.text;
    const bytes = utf8.encode(whole.slice(0, 2 * MOST_CHARACTERS)); // a lone half of a pair becomes U+FFFD here
    const characters = Array.from(lenient.decode(bytes)).slice(0, MOST_CHARACTERS);
    const text = characters.join("");
    const length = whole.length - (whole.match(/[\ud800-\udbff][\udc00-\udfff]/g)?.length ?? 0); // in code points
    const notes = [];
    if (length > characters.length)
      notes.push(
        `Your text has ${count(length, "character")}. Only the first ${count(characters.length, "character")} are encoded.`,
      );
    if (!whole.startsWith(text)) notes.push("Half of a surrogate pair is no character: it counts as U+FFFD, \ufffd.");
    say(this.note, notes.join(" "));
    const size = `${count(characters.length, "character")}, ${count(utf8.encode(text).length, "byte")} in UTF-8`;
    this.size.textContent = size;

    const { chosen } = this;
    const heard = [];
    for (const name of this.names) {
      const vocabulary = this.vocabularies[name];
      vocabulary.drawn = false;
      vocabulary.wrong = "";
      if (!still) vocabulary.section.setAttribute("aria-busy", "true");
    }
    for (const name of [chosen, ...this.names.filter((name) => name !== chosen)]) {
      const vocabulary = this.vocabularies[name];
      vocabulary.tokens = undefined; // the chips that stand without a script
      vocabulary.counted.textContent = "…";
      if (!still) {
        try {
          const table = await load(name, this.tables[name]);
          if (turn !== this.turn) return;
          vocabulary.tokens = encode(text, table);
        } catch (error) {
          if (turn !== this.turn) return;
          vocabulary.wrong =
            `The vocabulary ${name} cannot be loaded (${error.message}). ` +
            `The chips below are those of the first text. Type on to try again.`;
        }
      }
      vocabulary.section.removeAttribute("aria-busy");
      vocabulary.encoded = text;
      const tokens = vocabulary.tokens?.length ?? vocabulary.still.length;
      vocabulary.counted.textContent = vocabulary.wrong ? "not loaded" : count(tokens, "token");
      heard.push(`${name}: ${vocabulary.counted.textContent}`);
      this.draw();
    }
    if (!still) this.size.append(element("span", { className: "unseen" }, `; ${heard.join(", ")}`));
  }

  // Show the chosen vocabulary's chips.
  draw() {
    for (const name of this.names) {
      const { section, list, note, still, tokens, encoded, wrong, drawn } = this.vocabularies[name];
      section.hidden = name !== this.chosen;
      if (section.hidden || drawn || section.hasAttribute("aria-busy")) continue;
      this.vocabularies[name].drawn = true;
      list.replaceChildren(...(tokens ? chips(encoded, tokens.slice(0, MOST_CHIPS)) : still));
      const more = tokens?.length > MOST_CHIPS;
      note.classList.toggle("wrong", wrong !== "");
      say(note, wrong || (more ? `The first ${count(MOST_CHIPS, "token")} of ${count(tokens.length, "token")}:` : ""));
      section.querySelector(".count").replaceChildren(
        element("b", {}, name),
        `: ${count((tokens ?? still).length, "token")}`,
      );
    }
  }
}

function say(note, text) {
  note.textContent = text;
  note.hidden = text === "";
}

customElements.define("token-chips", TokenChips);
