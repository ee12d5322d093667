// Package version says which version of Berth a program is, and which API servers it runs with. Begin reading at Get.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	kubernetes "k8s.io/component-base/version"
)

// release is the version of a release, such as v1.2.3. The linker sets it (hack/tools/release). It is empty in a program that somebody has built for himself.
var release string

// Get is the version of this program: that of the release, or of the module if "go install" has built it, or else "devel".
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

// supported are the minor versions of API servers that this program runs with. Its scheduler must not be newer than the API server, and may be one
// minor version older.
func supported() (oldest, newest *utilversion.Version) {
	oldest = utilversion.MustParseGeneric(kubernetes.DefaultKubeBinaryVersion)
	return oldest, oldest.AddMinor(1)
}

// Supported are the API servers that this program runs with, in words.
func Supported() string {
	oldest, newest := supported()
	return fmt.Sprintf("%s and %s", oldest, newest)
}

// Constraint is Supported as kubeVersion of a chart.
func Constraint() string {
	oldest, newest := supported()
	return fmt.Sprintf(">= %d.%d.0-0 < %d.%d.0-0", oldest.Major(), oldest.Minor(), newest.Major(), newest.Minor()+1)
}

// Supports is whether this program runs with an API server of this version, such as v1.35.4 or v1.35.4-gke.100. The error says that it is no version.
func Supports(apiServer string) (bool, error) {
	v, err := utilversion.ParseSemantic(apiServer)
	if err != nil {
		return false, fmt.Errorf("the API server's version %q is none: %w", apiServer, err)
	}
	oldest, newest := supported()
	return v.Major() == oldest.Major() && oldest.Minor() <= v.Minor() && v.Minor() <= newest.Minor(), nil
}
