"""The style sheet of the page: light and dark as the reader has set it, from a phone to a wide screen, and on paper."""

from __future__ import annotations

# The colours of the series are those of Okabe and Ito's palette, which people with any kind of sight tell apart;
# the dark set is the same hues, lighter.
SHEET = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #1b2330; --soft: #5b6675; --rule: #dfe3e9; --grid: #e8ebf0;
  --good: #0072b2; --bad: #d55e00; --wait: #8a94a3; --warn: #b3261e; --wash: #fdf1ec;
  --c0: #0072b2; --c1: #e69f00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #d55e00; --c6: #8c6bb1;
  --other: #9aa4b2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b2129; --ink: #e7ebf1; --soft: #a2adbb; --rule: #323b47; --grid: #2a323d;
    --good: #4fa8e0; --bad: #f0883e; --wait: #8b96a5; --warn: #ff8a80; --wash: #33231d;
    --c0: #4fa8e0; --c1: #f0b93a; --c2: #35c79a; --c3: #e29bc4; --c4: #8fd0f5; --c5: #f0883e; --c6: #b79ae0;
    --other: #768294;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header, main, footer { max-width: 1080px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 32px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 0 0 4px; }
h3 { font-size: 0.95rem; margin: 24px 0 8px; }
p { margin: 0 0 12px; max-width: 72ch; }
.soft, figcaption, footer, caption { color: var(--soft); }
.soft, footer { font-size: 0.9rem; }
footer { padding-bottom: 40px; }
section, .look {
  background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 20px 24px 24px;
  margin: 0 0 20px;
}
.look { background: var(--wash); }
.look ul { margin: 0; padding-left: 20px; }
nav { margin: 12px 0 20px; font-size: 0.9rem; display: flex; flex-wrap: wrap; }
nav a { color: var(--soft); margin-right: 16px; white-space: nowrap; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--good); outline-offset: 2px; }
code { font: 0.9em ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles {
  display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 12px; margin: 20px 0; padding: 0;
  list-style: none;
}
.tiles li { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 12px 16px; }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums; }
.tiles span { display: block; font-size: 0.85rem; color: var(--soft); }
.tiles .warn b { color: var(--warn); }
.pair { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 4fr); gap: 8px 32px; align-items: start; }
figure { margin: 16px 0 0; min-width: 0; }
figcaption { font-size: 0.9rem; font-weight: 600; margin-bottom: 12px; }
.plot { display: grid; grid-template-columns: auto minmax(0, 1fr); grid-template-rows: 200px 24px; column-gap: 8px; }
.plot .ticks { position: relative; min-width: 56px; }
.plot .ticks span {
  position: absolute; right: 0; transform: translateY(50%); font-size: 0.75rem; line-height: 1; color: var(--soft);
  font-variant-numeric: tabular-nums; white-space: nowrap;
}
.plot .drawing svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot .below { grid-column: 2; position: relative; }
.plot .below span {
  position: absolute; top: 6px; transform: translateX(-50%); font-size: 0.75rem; color: var(--soft);
  white-space: nowrap; font-variant-numeric: tabular-nums;
}
.grid { stroke: var(--grid); stroke-width: 1; }
.plot g:hover rect { opacity: 0.7; }
.bar { display: block; width: 100%; min-width: 90px; height: 12px; background: var(--grid); border-radius: 3px; }
.line { display: block; width: 100%; min-width: 90px; height: 22px; }
.legend { list-style: none; margin: 10px 0 0; padding: 0; font-size: 0.85rem; display: flex; flex-wrap: wrap; }
.legend li { display: flex; align-items: center; margin-right: 16px; overflow-wrap: anywhere; }
.legend i { width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; flex: none; }
.scroll { overflow-x: auto; margin-top: 16px; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: 0.85rem; padding-bottom: 6px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr > :last-child { padding-right: 0; }
thead th { font-weight: 600; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 13ch; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.wide { width: 22%; vertical-align: middle; }
td.text { overflow-wrap: anywhere; min-width: 18ch; }
tbody tr:last-child > * { border-bottom: 0; }
details { margin-top: 16px; }
summary { cursor: pointer; font-size: 0.9rem; color: var(--soft); }
.none { color: var(--soft); margin: 12px 0 0; }
.good { fill: var(--good); background: var(--good); }
.good2 { fill: var(--c4); background: var(--c4); }
.bad { fill: var(--bad); background: var(--bad); }
.bad2 { fill: var(--c1); background: var(--c1); }
.wait { fill: var(--wait); background: var(--wait); }
.warnfill { fill: var(--warn); background: var(--warn); }
.c0 { fill: var(--c0); background: var(--c0); } .c1 { fill: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); background: var(--c2); } .c3 { fill: var(--c3); background: var(--c3); }
.c4 { fill: var(--c4); background: var(--c4); } .c5 { fill: var(--c5); background: var(--c5); }
.c6 { fill: var(--c6); background: var(--c6); } .other { fill: var(--other); background: var(--other); }
@media (max-width: 760px) {
  header, main, footer { padding-left: 12px; padding-right: 12px; }
  section, .look { padding: 16px; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
  .tiles b { font-size: 1.25rem; }
  .plot { grid-template-rows: 160px 24px; }
  .plot .below span:nth-child(even) { display: none; }
  th, td { padding-right: 8px; }
  tbody th { min-width: 10ch; }
  .bar, .line { min-width: 56px; }
}
@media print {
  body { background: none; } section { break-inside: avoid; border: 0; padding: 12px 0; } nav { display: none; }
}
"""
