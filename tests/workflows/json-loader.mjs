// The parser imports JSON the way bundlers like it; node wants an attribute that is not there.
import {readFileSync} from "node:fs";
import {fileURLToPath} from "node:url";

export async function load(url, context, nextLoad) {
  if (!url.endsWith(".json")) return nextLoad(url, context);
  return {format: "module", shortCircuit: true, source: `export default ${readFileSync(fileURLToPath(url), "utf8")}`};
}
