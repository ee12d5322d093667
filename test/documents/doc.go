// Package documents runs the commands that the documents show, and compares their output with the output in the document. It covers README, the
// tutorials, and the guides to operations, migration and kubectl berth. The commands themselves start the sandbox that they run on. The package
// also checks that links and paths exist.
//
// Rules for a document, so that the tests can run it:
//
//   - A ```console block contains commands and their output. A line that begins with "$ " is a command. If it ends in a backslash, the next line
//     continues it. The lines up to the next command are the output.
//   - The commands of one document run one after the other in one shell. The working directory looks like the repository. Files that the commands
//     create there do not affect the repository. Only make runs in the repository itself.
//   - A command must succeed. If a line of the shown output begins like a refusal ("error:", "Error from server"; see fails), the command must fail.
//   - A command without shown output may print anything. A line "…" stands for any lines. "…" inside a line stands for any text.
//   - The comparison ignores ages, times, generated names, ports, paths of the repository, and the number of spaces between columns; see normalise.
//   - The test repeats a command that only reads (kubectl get, kubectl berth status; see reads) until it prints the shown output, for one minute at
//     most. Every other command runs once. So a document waits as its readers do: kubectl rollout status, kubectl wait.
//   - A ```shell block does not run. notRun gives the reason for the test. The text of the document tells the reader what to know about it.
//   - The info string of a fence is one word, the kind of the block. Readers do not see the info string.
//   - A ```yaml block is a part of a file in docs/examples.
//   - Each tutorial leaves the cluster as it was before. The test also runs the commands that undo its changes.
//
// To write a document, use "?" as the output of a command. Run go test ./test/documents -run 'Tutorials/NAME' -update, and read the output that it
// writes there.
package documents
