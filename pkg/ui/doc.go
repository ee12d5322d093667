// Package ui is a page that shows a cluster live: nodes in groups, the pods on them and those that wait, and of each spread how full its subsets are and
// what happens next. It answers what a person would ask kubectl again and again.
//
// It only reads: with the rights of whoever opens it, from watches, and what it sends to browsers is what the page shows and nothing else. It decides
// nothing; which subset a pod belongs to is asked of the model, and what a spread's status means of package report. Begin reading at Open: a watch brings
// objects to the board, the board tells the stream what is new on the page, and the stream tells every browser.
package ui
