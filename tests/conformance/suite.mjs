// The public suite `http-cache-tests`, driven through one cache.
//
//   node suite.mjs origin              the suite's origin on 127.0.0.1; prints its port
//   node suite.mjs tests BASE [PROXY] [ID...]
//                                      plays the tests at BASE, or through PROXY if it is not
//                                      empty; prints the outcome. With IDs, plays only these tests
//                                      and their dependencies.
//
// The tests, the client that plays them, the origin's responses and the rules for verdicts are the
// suite's own, unchanged. This file adds what its command line lacks: an origin that other machines
// cannot reach, and a client of a forward proxy.
import http from 'node:http'

import fetch from 'node-fetch'

import { getResults, runTests } from 'http-cache-tests/client/runner.mjs'
import { determineTestResult } from 'http-cache-tests/lib/display.mjs'
import index from 'http-cache-tests/results/index.mjs'
import handleConfig from 'http-cache-tests/server/handle-config.mjs'
import handleState from 'http-cache-tests/server/handle-state.mjs'
import handleTest from 'http-cache-tests/server/handle-test.mjs'
import base from 'http-cache-tests/tests/index.mjs'
import surrogate from 'http-cache-tests/tests/surrogate-control.mjs'
import { readFileSync } from 'node:fs'

// The symbols that the suite prints for its verdicts.
const VERDICTS = {
  '✅': 'pass',
  '⛔️': 'fail',
  '⚠️': 'fail',
  Y: 'yes',
  N: 'no',
  '🔹': 'setup',
  '⁉️': 'harness',
  '⚪️': 'dependency',
  '↻': 'retry',
  '-': 'untested'
}

const IDLE_MS = 600_000

function origin () {
  const handlers = { config: handleConfig, state: handleState, test: handleTest }
  const server = http.createServer((request, response) => {
    const [, dispatch, ...rest] = new URL(request.url, 'http://origin').pathname.split('/')
    if (dispatch in handlers) {
      handlers[dispatch](rest, request, response)
    } else {
      response.writeHead(404).end()
    }
  })
  // Node would close idle connections after five seconds, just when a proxy may use one again.
  server.keepAliveTimeout = IDLE_MS
  server.listen(0, '127.0.0.1', () => console.log(server.address().port))
}

// Sends a request for a server to a proxy, with the target in absolute form (RFC 9112 section
// 3.2.2). Node writes the header later, from the path that is in the request at that time.
class ProxyAgent extends http.Agent {
  constructor (proxy) {
    super()
    this.proxy = new URL(proxy)
  }

  addRequest (request, options) {
    request.path = `http://${options.host}:${options.port}${request.path}`
    super.addRequest(request, { ...options, host: this.proxy.hostname, port: this.proxy.port })
  }
}

function verdicts (suites, results) {
  const found = {}
  for (const suite of suites) {
    for (const test of suite.tests) {
      const symbol = determineTestResult(suites, test.id, results)[2]
      found[test.id] = VERDICTS[symbol]
    }
  }
  return found
}

// The suites with the tests of these names and those that they depend on, or with all if none is
// named.
function selected (suites, ids) {
  if (ids.length === 0) return suites
  const all = new Map(suites.flatMap(suite => suite.tests.map(test => [test.id, test])))
  const wanted = new Set(ids)
  for (const id of wanted) {
    for (const other of all.get(id)?.depends_on ?? []) wanted.add(other)
  }
  return suites.map(suite => ({ ...suite, tests: suite.tests.filter(test => wanted.has(test.id)) }))
}

async function tests (url, proxy, ...ids) {
  const everything = [...base, surrogate]
  const suites = selected(everything, ids)
  // A connection for each request. The cache may close an idle connection at the moment when it is
  // used again, which would fail an unrelated test.
  const agent = proxy ? new ProxyAgent(proxy) : new http.Agent()
  await runTests(suites, (to, init) => fetch(to, { ...init, agent }), false, url)
  const results = getResults()
  const verdict = verdicts(suites, results)
  const rows = suites.flatMap(suite => suite.tests.map(test => ({
    id: test.id,
    suite: suite.id,
    name: test.name,
    kind: test.kind ?? 'required',
    browser: test.browser_only === true,
    verdict: verdict[test.id],
    detail: results[test.id] === true ? '' : (results[test.id] ?? []).join(': ')
  })))
  const published = {}
  for (const { file, version } of index) {
    const text = readFileSync(new URL(`node_modules/http-cache-tests/results/${file}`, import.meta.url))
    const product = file.replace('.json', '')
    published[product] = { version, verdicts: verdicts(everything, JSON.parse(text)) }
  }
  console.log(JSON.stringify({ tests: rows, published }))
}

const [, , command, ...operands] = process.argv
await { origin, tests }[command](...operands)
