// Package version says which version of Berth a program is, and which API servers it runs with. Begin reading at Get.
package version

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	kubernetes "k8s.io/component-base/version"
)

// release is the version of a release, such as v1.2.3. The linker sets it (hack/tools/release). It is empty in a
// program that somebody has built for himself.
var release string

// Get is the version of this program: that of the release, or of the module if "go install" has built it, or else
// "devel".
func Get() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return strings.Trim(info.Main.Version, "()")
	}
	return "devel"
}

// Line is what a program prints about itself.
func Line(program string) string {
	return fmt.Sprintf("%s %s, built on Kubernetes %s", program, Get(), kubernetes.DefaultKubeBinaryVersion)
}

// Lines are the minor versions of Kubernetes that Berth is built on: that of go.mod, and those of hack/lines. A
// scheduler must not be newer than its API server, and may be one minor version older. So a line runs with API servers
// of its own minor version and of the next.
var Lines = []string{"1.35", "1.37"}

// LineFor is the line for an API server of this version, such as v1.35.4 or v1.35.4-gke.100. It is empty if no line
// runs with it. The error says that it is no version.
func LineFor(apiServer string) (string, error) {
	v, err := utilversion.ParseSemantic(apiServer)
	if err != nil {
		return "", fmt.Errorf("the API server's version %q is none: %w", apiServer, err)
	}
	for _, line := range Lines {
		oldest := utilversion.MustParseGeneric(line)
		if v.Major() == oldest.Major() && (v.Minor() == oldest.Minor() || v.Minor() == oldest.Minor()+1) {
			return line, nil
		}
	}
	return "", nil
}

// tag matches the tags of releases.
var tag = regexp.MustCompile(`^(v\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?)(?:-k8s(\d+\.\d+))?$`)

// OfTag is the release, such as v1.2.3, and the line that the tag of an image says. Both are empty if it is not the tag
// of a release.
func OfTag(text string) (release, line string) {
	parts := tag.FindStringSubmatch(text)
	if parts == nil {
		return "", ""
	}
	return parts[1], cmp.Or(parts[2], Lines[0])
}

// Supported are the API servers that some line runs with, in words.
func Supported() string {
	var all []string
	for _, line := range Lines {
		all = append(all, line, utilversion.MustParseGeneric(line).AddMinor(1).String())
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}
