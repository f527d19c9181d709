// What the elements with controls share: making elements, reading a file of the site, and what to say where it is missing.

const TYPES = { F32: Float32Array, I32: Int32Array, I8: Int8Array, U8: Uint8Array };

let made = 0;
export const fresh = (name) => `${name}-${made++}`; // an id: those of several elements on a page differ

export function element(name, properties = {}, ...children) {
  const it = Object.assign(document.createElement(name), properties);
  it.append(...children);
  return it;
}

export function button(text, action) {
  const it = element("button", { type: "button" }, text);
  it.addEventListener("click", action);
  return it;
}

// A slider in a row with its name and its value; tell(text) shows the value to those who see and those who listen.
export function slider(text, min, max, step, value) {
  const input = element("input", { type: "range", id: fresh("slider"), min, max, step });
  input.value = value; // after its bounds
  const shown = element("span", { className: "value" }); // no <output>, which would be read out twice
  const label = element("label", { htmlFor: input.id }, text);
  const tell = (words) => {
    shown.textContent = words;
    input.setAttribute("aria-valuetext", words);
  };
  return { input, tell, row: element("div", { className: "control" }, label, input, shown) };
}

// A list to choose from, in a row with its name and whatever else is to stand beside it.
export function choice(text, options, ...more) {
  const input = element("select", { id: fresh("choice") });
  input.append(...options.map((words, i) => element("option", { value: i }, words)));
  const label = element("label", { htmlFor: input.id }, text);
  return { input, row: element("div", { className: "control" }, label, input, ...more) };
}

const NAMES = { "␣": "blank", "↵": "line end", "⇥": "tab" }; // what software that reads aloud would not say

// A token as code, with its signs named for those who listen.
export function token(text) {
  const sign = element("code", {}, text);
  if (!/[␣↵⇥]/.test(text)) return [sign];
  sign.setAttribute("aria-hidden", "true");
  const words = text.replace(/[␣↵⇥]/g, (one) => ` ${NAMES[one]} `).trim();
  return [sign, element("span", { className: "unseen" }, words)];
}

export const share = (p) => (p >= 0.0005 ? `${(100 * p).toFixed(1)} %` : "< 0.1 %");

// A file of the safetensors format beside this script: { about, tensors: { name: { data, shape } } }.
async function read(name) {
  const answer = await fetch(new URL(`data/${name}`, import.meta.url));
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const buffer = await answer.arrayBuffer();
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...found } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [key, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(found)) {
    const type = TYPES[dtype];
    tensors[key] = { shape, data: new type(buffer, 8 + length + begin, (end - begin) / type.BYTES_PER_ELEMENT) };
  }
  return { about: JSON.parse(metadata.about), tensors };
}

// An element that begins when its file has come, and asks for it when the reader comes near. A custom element starts
// wherever it comes into the page, so the theme's way to swap pages needs nothing more.
export class Fed extends HTMLElement {
  connectedCallback() {
    if (this.begun) return; // moved, and not new
    this.begun = true;
    if (!this.dataset.file) return this.begin();
    const watch = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        watch.disconnect();
        this.load();
      },
      { rootMargin: "400px" },
    );
    watch.observe(this);
  }

  async load() {
    let found;
    try {
      found = await read(this.dataset.file);
    } catch {
      return this.miss();
    }
    this.missed?.remove();
    this.begin(found);
  }

  miss() {
    const words = "The file behind the controls could not be loaded. The picture below stands without them. ";
    const said = element("p", { className: "missed" }, words, button("Try again", () => this.load()));
    said.setAttribute("role", "status");
    this.missed?.remove();
    this.prepend((this.missed = said));
  }
}
