// Runs where somebody calls `quarto render` in this folder, which holds no page.
console.error(
  "This folder holds settings and no page. 'make report RENDERER=quarto' executes the pages over " +
    "your runs, renders them with Quarto and writes reports/_site.",
);
Deno.exit(1);
