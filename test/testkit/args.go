package testkit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// Args are those of a plugin, by a pointer to their type.
type Args[A any] interface {
	*A
	Default()
	Validate() field.ErrorList
}

// ReadArgs reads args from YAML.
func ReadArgs[A any](t *testing.T, text string) *A {
	t.Helper()
	args := new(A)
	if err := yaml.UnmarshalStrict([]byte(text), args); err != nil {
		t.Fatal(err)
	}
	return args
}

// ExpectDefaults fails the test unless what is given, as YAML, becomes what is wanted.
func ExpectDefaults[A any, P Args[A]](t *testing.T, wants map[string]string) {
	t.Helper()
	for given, want := range wants {
		got := P(ReadArgs[A](t, given))
		got.Default()
		if diff := cmp.Diff(P(ReadArgs[A](t, want)), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", given, diff)
		}
	}
}

// ExpectRefused fails the test unless what is given, as YAML, has mistakes in just these fields.
func ExpectRefused[A any, P Args[A]](t *testing.T, wants map[string][]string) {
	t.Helper()
	for given, want := range wants {
		var got []string
		for _, err := range P(ReadArgs[A](t, given)).Validate() {
			got = append(got, err.Field)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got errors at %v, want %v", given, got, want)
		}
	}
}
