"""How does the page of a report look? Style and a few lines of script; nothing is loaded from elsewhere."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --ink: #1d1d1b; --faint: #6f6f6a; --paper: #fcfcfa; --line: #e3e3dd; --soft: #f4f4f0;
  --reproduced: #2f7d43; --partly: #a36a00; --not: #b93a27; --needs-a-model: #3465a4; --later: #6f5aa0;
  --untold: #7a7440; --contrary: #8a5a44; --quick: #5f7480; --failed: #b93a27; --schematic: #8b8b86; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #ecece6; --faint: #a0a099; --paper: #191918; --line: #333330; --soft: #222220;
    --reproduced: #6cc384; --partly: #e0ab4b; --not: #ee8371; --needs-a-model: #86aee3; --later: #b3a0e0;
    --untold: #c9c07a; --contrary: #cf9d86; --quick: #9db4c0; --failed: #ee8371; --schematic: #93938c; }}
}}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 32px auto;
  max-width: 1320px; padding: 0 28px; }}
h1 {{ font-size: 25px; font-weight: 650; margin: 0 0 4px; letter-spacing: -.01em; }}
h2 {{ font-size: 18px; font-weight: 600; margin: 44px 0 0; }}
p {{ margin: 0 0 10px; }} td p {{ margin-bottom: 4px; }} .faint {{ color: var(--faint); }}
.overview {{ display: grid; grid-template-columns: max-content 1fr max-content; gap: 7px 16px; align-items: center;
  margin: 22px 0 8px; }}
.bar {{ display: flex; height: 13px; border-radius: 4px; overflow: hidden; background: var(--soft); gap: 1px; }}
.bar i {{ display: block; }}
nav {{ position: sticky; top: 0; background: var(--paper); padding: 12px 0 10px; border-bottom: 1px solid var(--line);
  display: flex; flex-wrap: wrap; gap: 6px 8px; z-index: 2; }}
nav .gap {{ width: 18px; }}
button {{ font: inherit; font-size: 13.5px; color: var(--ink); background: none; border: 1px solid var(--line);
  border-radius: 99px; padding: 2px 12px; cursor: pointer; }}
button[aria-pressed="true"] {{ background: var(--ink); color: var(--paper); border-color: var(--ink); }}
button:focus-visible, img:focus-visible {{ outline: 2px solid var(--needs-a-model); outline-offset: 2px; }}
table {{ border-collapse: collapse; width: 100%; margin-top: 8px; table-layout: fixed; }}
th {{ text-align: left; font-size: 12.5px; font-weight: 600; color: var(--faint); }}
th, td {{ padding: 11px 18px 11px 0; vertical-align: top; overflow-wrap: break-word; }}
thead th {{ border-bottom: 1px solid var(--line); padding: 6px 18px 6px 0; }}
tbody {{ border-bottom: 1px solid var(--line); }}
.where {{ width: 15%; }} .verdict {{ width: 13%; }}
.id {{ font: 600 14px ui-monospace, monospace; color: inherit; text-decoration: none; }}
.id:hover {{ text-decoration: underline; }}
.where small, td small {{ display: block; color: var(--faint); font-size: 13px; line-height: 1.4; }}
td b {{ font-weight: 600; display: block; }}
.note {{ color: var(--faint); font-size: 13.5px; margin: 6px 0 0; }}
.chip {{ display: inline-block; font-size: 13px; font-weight: 600; border-radius: 99px; padding: 1px 11px;
  border: 1.5px solid currentColor; white-space: nowrap; }}
code {{ font: 12.5px ui-monospace, monospace; background: var(--soft); border-radius: 4px; padding: 2px 6px;
  overflow-wrap: anywhere; }}
td > code {{ display: inline-block; margin-top: 8px; }}
.pictures td {{ padding: 0 0 18px; }}
.pictures div {{ display: flex; flex-wrap: wrap; gap: 12px; margin-left: 15%; }}
.pictures img {{ height: 168px; max-width: 100%; object-fit: contain; background: white; border: 1px solid var(--line);
  border-radius: 6px; padding: 5px; cursor: zoom-in; }}
.pictures img.large {{ height: auto; width: 100%; cursor: zoom-out; }}
[hidden] {{ display: none !important; }}
footer {{ margin: 32px 0; color: var(--faint); font-size: 13px; }}
@media (max-width: 760px) {{
  table, thead, tbody, tr, td {{ display: block; width: auto; }} thead {{ display: none; }}
  td {{ padding: 4px 0; }} .pictures div {{ margin-left: 0; }} tbody {{ padding: 10px 0; }}
  .overview {{ grid-template-columns: 1fr max-content; }} .overview .bar {{ grid-column: 1 / -1; grid-row: auto; }}
}}
@media print {{
  :root {{ color-scheme: light; }} nav {{ display: none; }} body {{ margin: 0; max-width: none; font-size: 11px; }}
  tbody {{ break-inside: avoid; }} .pictures img {{ height: 130px; }}
  .bar, .bar i, .chip {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
{shades}
</style></head><body>
<h1>{title}</h1>
<p class="faint">{summary}</p>
<div class="overview">{overview}</div>
<nav aria-label="Filter">{buttons}</nav>
<main>{sections}</main>
<footer>{footer}</footer>
<script>
const picked = {{ paper: '', state: '' }};
function filter() {{
  for (const b of document.querySelectorAll('nav button'))
    b.setAttribute('aria-pressed', String(picked[b.dataset.kind] === b.dataset.value));
  for (const row of document.querySelectorAll('tbody'))
    row.hidden = picked.state !== '' && row.dataset.state !== picked.state;
  for (const s of document.querySelectorAll('section'))
    s.hidden = (picked.paper !== '' && s.dataset.paper !== picked.paper) || !s.querySelector('tbody:not([hidden])');
}}
for (const b of document.querySelectorAll('nav button'))
  b.addEventListener('click', () => {{ picked[b.dataset.kind] = b.dataset.value; filter(); }});
for (const img of document.querySelectorAll('img')) {{
  img.addEventListener('click', () => img.classList.toggle('large'));
  img.addEventListener('keydown', e => {{ if (e.key === 'Enter') img.classList.toggle('large'); }});
}}
</script></body></html>
"""
