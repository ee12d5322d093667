// Package podspec says what is wrong in the parts of a pod's spec that users write into Berth's objects: terms that
// select nodes, tolerations, labels, strategic merge patches, and whole templates. It refuses what the API server would
// refuse in the pod, when the object is written and not when the pods are made.
//
// It knows no rule of Berth. Package subset, package united and package federation ask it.
package podspec
