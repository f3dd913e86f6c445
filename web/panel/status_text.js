/** The status line that the server sends, taken apart. The decision is its first word, in English. */

export const DECISIONS = ["hit", "miss", "declined", "assist", "off"]

/**
 * @param {string} line such as "hit 2.1× · donor 3 min ago · region 18%" or "miss: the store is empty".
 * @returns {{decision: string, head: string, rest: string}|null} head is "hit 2.1×"; null while a run goes on.
 */
export function takeApart(line) {
  const found = /^(\w+)( [\d.]+×)?/.exec(line)
  if (!found || !DECISIONS.includes(found[1])) return null
  return { decision: found[1], head: found[0], rest: line.slice(found[0].length).replace(/^[\s:,·]+/, "") }
}
