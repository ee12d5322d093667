package main

// A line is a minor version of Kubernetes that the programs are built on.
type line struct {
	// kubernetes are the API servers that the programs run with, as a constraint of Helm. It replaces the one in Chart.yaml.
	kubernetes string
	// flags are those of go build for programs that are linked with kube-scheduler's code, besides the ones of every line.
	flags []string
	// suffix follows the version in the tags of images, in the version of the chart and in the names of archives, and the names of other files that people
	// download. The default line has none.
	suffix string
}

// defaultLine is the line of go.mod.
const defaultLine = "1.35"

// lines are all lines. Berth's scheduler runs with API servers of its own minor version and of the next.
var lines = map[string]line{
	defaultLine: {kubernetes: ">= 1.35.0-0 < 1.37.0-0"},
	"1.37": {kubernetes: ">= 1.37.0-0 < 1.39.0-0", suffix: "-k8s1.37",
		flags: []string{"-modfile=hack/lines/1.37/go.mod", "-tags=kubernetes_1_37"}},
}

// linked are the commands that are linked with kube-scheduler's code. All others are the same in every line.
var linked = []string{"scheduler", "descheduler", "whatif"}
