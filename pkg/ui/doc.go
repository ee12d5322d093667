// Package ui is a page that shows a cluster live: nodes in groups, the pods on them, pending pods, and for each spread
// how full its subsets are and what happens next.
//
// It only reads, with the rights of the user who opens it. It sends browsers what the page shows and nothing else. It
// decides nothing: it asks the model for a pod's subset, and package report for the meaning of a spread's status. Begin
// reading at Open: a watch puts objects on the board, the board tells the stream what has changed, and the stream tells
// every browser.
package ui
