// Package documents runs the documents: every command that README, the tutorials and the guides to operations, migration and kubectl berth show, on a sandbox
// that these very commands start, and compares what it prints with what the document says that it prints. It also holds that links and paths exist.
//
// How a document is written, so that it can be run:
//
//   - A ```console block holds commands and what they print. A line that begins with "$ " is a command, with the lines after it while it ends in
//     a backslash; what follows up to the next command is its output.
//   - Commands of one document run one after the other in one shell, in a directory in which everything of the repository is to be found, and
//     what they make is in nobody's way. Only make runs in the repository itself.
//   - A command must succeed, unless a line of the output shown begins as refusals do ("error:", "Error from server"; see fails). Then it must
//     fail.
//   - A command without output shown may print anything. A line "…" stands for any lines, "…" inside of a line for any text.
//   - Ages, times, generated names, ports, paths of the repository and the number of spaces between columns are not compared; see normalise.
//   - A command that only reads (kubectl get, kubectl berth status; see reads) is repeated until it prints what is shown, for a minute at most.
//     Everything else runs once, so documents wait as their readers do: kubectl rollout status, kubectl wait.
//   - A ```shell block is not run. notRun says why, for the test; what a reader must know of it is in the text.
//   - A fence has one word behind it, its kind. Readers do not see what else would be there.
//   - A ```yaml block is a part of a file in docs/examples.
//   - After each tutorial the cluster is as it was before: its undo is tested like everything else.
//
// To write one: leave "?" as the output of a command, run go test ./test/documents -run 'Tutorials/NAME' -update, and read what it has put there.
package documents
