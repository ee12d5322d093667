package descheduling

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestSettingsThatAreRefused(t *testing.T) {
	path := field.NewPath("x")
	for name, tc := range map[string]struct {
		errs field.ErrorList
		want int
	}{
		"nothing given":                    {errs: append((&Scope{}).Validate(), (&Backoff{}).Validate(path)...)},
		"include and exclude":              {errs: (&Scope{Namespaces: &Namespaces{Include: []string{"a"}, Exclude: []string{"b"}}}).Validate(), want: 1},
		"a backoff that shrinks":           {errs: (&Backoff{Base: duration(time.Hour), Longest: duration(time.Minute)}).Validate(path), want: 1},
		"a backoff beyond what is known":   {errs: (&Backoff{Base: duration(0), Longest: duration(25 * time.Hour)}).Validate(path), want: 2},
		"a count":                          {errs: amount(path, ptr.To(intstr.FromInt(3)))},
		"a percentage":                     {errs: amount(path, ptr.To(intstr.FromString("10%")))},
		"no pods at all":                   {errs: amount(path, ptr.To(intstr.FromInt(0))), want: 1},
		"more than all":                    {errs: amount(path, ptr.To(intstr.FromString("101%"))), want: 1},
		"what is no amount":                {errs: amount(path, ptr.To(intstr.FromString("ten"))), want: 1},
		"a duration at its least and most": {errs: append(between(path, duration(1), 1, 2), between(path, duration(2), 1, 2)...)},
		"a duration out of bounds":         {errs: append(between(path, duration(0), 1, 2), between(path, duration(3), 1, 2)...), want: 2},
	} {
		if len(tc.errs) != tc.want {
			t.Errorf("%s: got %v, want %d errors", name, tc.errs, tc.want)
		}
	}
}

func TestDefaultsKeepWhatIsGiven(t *testing.T) {
	b := &Backoff{Base: duration(2 * time.Second)}
	defaultBackoff(&b, time.Minute, time.Hour)
	if got := b.Pace(); got.Base != 2*time.Second || got.Longest != time.Hour {
		t.Errorf("got %+v", got)
	}
}
