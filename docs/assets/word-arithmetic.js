// The words nearest to a − b + c, among the words of a list.
//
// gptbook.widgets.arithmetic publishes <word-arithmetic data-file="...">, and inside of it the answer to one question,
// which stands where no script runs. The file holds the words, and their embeddings as bytes with a scale for each row.

import { button, element, Fed, fresh } from "./controls.js";

const SHOWN = 8;

class WordArithmetic extends Fed {
  begin({ about, tensors }) {
    Object.assign(this, about);
    this.places = new Map(this.words.map((word, i) => [word, i]));
    this.vectors = this.unpacked(tensors);
    this.folded = []; // for each field, the word that stands for what was typed

    const list = element("datalist", { id: fresh("words") }, ...this.words.map((value) => element("option", { value })));
    this.inputs = ["", "−", "+"].map((sign, i) => {
      const input = element("input", { type: "text", id: fresh("word"), autocomplete: "off", spellcheck: false });
      input.autocapitalize = "off";
      input.setAttribute("list", list.id);
      input.value = this.examples[0][i];
      input.setAttribute("aria-label", ["first word", "minus", "plus"][i]);
      input.addEventListener("change", () => this.show());
      input.addEventListener("input", () => {
        this.folded[i] = undefined;
        if (this.places.has(input.value.trim())) this.show();
      });
      return { input, field: element("span", {}, sign, input) };
    });
    const form = element("form", { className: "sum" }, ...this.inputs.map(({ field }) => field), list);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.show();
    });
    const box = (text, checked) => {
      const input = element("input", { type: "checkbox", checked });
      input.addEventListener("change", () => this.show());
      return { input, label: element("label", {}, input, text) };
    };
    this.without = box("leave out the three words", true);
    this.centred = box("take the mean off first", true);
    const boxes = element("div", { className: "boxes" }, this.without.label, this.centred.label);
    const examples = this.examples.map((words) =>
      button(`${words[0]} − ${words[1]} + ${words[2]}`, () => {
        this.inputs.forEach(({ input }, i) => (input.value = words[i]));
        this.folded = [];
        this.show();
      }),
    );
    const presses = element("div", { className: "presses" }, ...examples);
    presses.setAttribute("role", "group");
    presses.setAttribute("aria-label", "examples");

    this.about = this.querySelector(".about");
    this.about.setAttribute("role", "status");
    this.list = this.querySelector("ol");
    this.prepend(form, ...(examples.length > 1 ? [presses] : []), boxes);
    const many = this.words.length.toLocaleString("en");
    const note = `The search goes through ${many} common words, and not through the whole vocabulary. Their embeddings are rounded to bytes, which moves a cosine by a few thousandths.`;
    this.append(element("p", { className: "note" }, note));
    this.show();
  }

  // The embeddings as they are, and with the mean taken off, each with its length.
  unpacked({ rows, scales, mean }) {
    const [N, C] = rows.shape;
    const kinds = [false, true].map((centred) => {
      const vectors = Array.from({ length: N }, (_, i) => {
        const vector = Float64Array.from(rows.data.subarray(i * C, (i + 1) * C), (byte) => byte * scales.data[i]);
        return centred ? vector.map((x, c) => x - mean.data[c]) : vector;
      });
      return { vectors, lengths: vectors.map(length) };
    });
    return { raw: kinds[0], centred: kinds[1] };
  }

  // The place of a typed word in the list, or why it has none.
  find(typed) {
    const word = typed.trim();
    const others = [word.toLowerCase(), word.charAt(0).toUpperCase() + word.slice(1).toLowerCase()];
    const found = [word, ...others].find((one) => this.places.has(one));
    if (found !== undefined) return { word: found, place: this.places.get(found), typed: word };
    if (!word) return { trouble: "A word is missing." };
    const pieces = this.split[word];
    if (pieces)
      return { trouble: `“${word}” is not one token but ${pieces.length}: ${pieces.join(" · ")}. It has no embedding of its own.` };
    const many = this.words.length.toLocaleString("en");
    return { trouble: `“${word}” is not among the ${many} words of this list. Words that are more than one token have no embedding of their own, and rare ones were left out.` };
  }

  show() {
    const found = this.inputs.map(({ input }) => this.find(input.value));
    found.forEach((one, i) => one.word !== one.typed && (this.folded[i] = one)); // until the field is written in
    this.inputs.forEach(({ input }, i) => {
      input.setAttribute("aria-invalid", Boolean(found[i].trouble));
      if (!found[i].trouble) input.value = found[i].word;
    });
    const troubles = [...new Set(found.map(({ trouble }) => trouble).filter(Boolean))];
    this.about.classList.toggle("wrong", troubles.length > 0);
    if (troubles.length) {
      this.about.textContent = troubles.join(" ");
      this.list.replaceChildren();
      return;
    }
    const { vectors, lengths } = this.vectors[this.centred.input.checked ? "centred" : "raw"];
    const places = found.map(({ place }) => place);
    const [a, b, c] = places.map((place) => vectors[place]);
    const wanted = a.map((x, i) => x - b[i] + c[i]);
    const size = length(wanted);
    const cosines = vectors.map((vector, i) => [vector.reduce((sum, x, c) => sum + x * wanted[c], 0) / (lengths[i] * size), i]);
    const left = this.without.input.checked ? cosines.filter(([, i]) => !places.includes(i)) : cosines;
    const nearest = left.sort(([p, i], [q, j]) => q - p || i - j).slice(0, SHOWN);
    const [first, second, third] = found.map(({ word }) => word);
    const folded = this.folded
      .filter((one, i) => one?.word === found[i].word)
      .map(({ word, typed }) => ` “${typed}” is not in the list: this is the answer for “${word}”, which is another one to the model.`);
    this.about.textContent = `Nearest to ${first} − ${second} + ${third}: ${this.words[nearest[0][1]]}, with a cosine of ${number(nearest[0][0])}.${folded.join("")}`;
    this.list.replaceChildren(
      ...nearest.map(([cosine, i]) => {
        const own = places.includes(i);
        const share = element("span", { className: "share" }, number(cosine));
        const item = element("li", {}, element("code", {}, this.words[i]), element("span", { className: "bar" }), share);
        if (own) item.append(element("span", { className: "unseen" }, "one of the three"));
        item.classList.toggle("own", own);
        item.style.setProperty("--p", Math.max(0, cosine));
        return item;
      }),
    );
  }
}

const length = (vector) => Math.hypot(...vector);
const number = (x) => x.toFixed(2).replace("-", "−");

customElements.define("word-arithmetic", WordArithmetic);
