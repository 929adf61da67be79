"use strict";
const form = document.getElementById("filters");
const cards = [...document.querySelectorAll("details.claim")];
const sections = [...document.querySelectorAll("section.chapter")];
const first = document.getElementById("first");
const shown = document.getElementById("shown");
const RANK = {error: 0, failed: 1, departs: 2, refuted: 3};
// Where each card belongs, to bring it back from the failures.
cards.forEach((card) => { card.home = card.parentElement; card.text = ""; });

function matches(card, verdicts, words) {
  if (!verdicts.has(card.dataset.verdict)) return false;
  for (const name of ["kind", "section"]) {
    if (form[name].value && card.dataset[name] !== form[name].value) return false;
  }
  if (form.device.value && !card.dataset.device.split(" ").includes(form.device.value)) return false;
  if (!words.length) return true;
  card.text = card.text || card.textContent.toLowerCase();
  return words.every((word) => card.text.includes(word));
}

function filter() {
  const verdicts = new Set([...form.querySelectorAll("[name=verdict]:checked")].map((box) => box.value));
  const words = form.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const card of cards) {
    card.hidden = !matches(card, verdicts, words);
    count += !card.hidden;
  }
  for (const section of sections) section.hidden = !section.querySelector("details.claim:not([hidden])");
  shown.textContent = `${count} of ${cards.length} claims are shown.`;
}

function order() {
  const failures = cards.filter((card) => card.dataset.verdict in RANK);
  if (form.failures.checked) {
    failures.sort((a, b) => RANK[a.dataset.verdict] - RANK[b.dataset.verdict]);
    first.append(...failures);
  } else {
    // In the chapter's order, each before the card that follows it there.
    for (const card of [...cards].reverse()) {
      const next = cards[cards.indexOf(card) + 1];
      if (card.parentElement === first) {
        card.home.insertBefore(card, next && next.home === card.home ? next : null);
      }
    }
  }
  filter();
}

// A link to a claim shows it, whatever the filters say.
function open() {
  const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!card || !card.matches("details.claim")) return;
  if (card.hidden) { form.reset(); order(); }
  card.open = true;
  card.scrollIntoView();
}

// What is open and wider than its place is reached by the keyboard too. All is read before anything
// is written, and what is shut is left alone: to lay it out takes long.
const OPEN = "section > .scroll, figure > .scroll, details[open] .scroll";
function reach(boxes) {
  const wide = new Set([...boxes].filter((box) => box.scrollWidth > box.clientWidth));
  for (const box of boxes) {
    if (wide.has(box)) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

document.addEventListener("toggle", (event) => {
  if (event.target.open) reach(event.target.querySelectorAll(".scroll"));
}, true);
window.addEventListener("resize", () => reach(document.querySelectorAll(OPEN)));
form.addEventListener("input", filter);
form.failures.addEventListener("change", order);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(order));
window.addEventListener("hashchange", open);
window.addEventListener("beforeprint", () => cards.forEach((card) => { card.was = card.open; card.open = true; }));
window.addEventListener("afterprint", () => cards.forEach((card) => { card.open = card.was; }));
form.hidden = false;
order();
open();
reach(document.querySelectorAll(OPEN));
