package federation

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseRoom(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		text string
		want *Room
		err  string
	}{
		"nothing yet":       {"", nil, ""},
		"a report":          {`{"at": "2026-11-01T12:00:00Z", "seats": {"a": 3, "b": 0}, "bound": {"shop/web": 2}}`, &Room{at, map[string]int32{"a": 3, "b": 0}, map[string]int32{"shop/web": 2}}, ""},
		"no JSON":           {"seats", nil, "invalid character"},
		"more than JSON":    {"{} {}", nil, "text after the object"},
		"a number below 0":  {`{"seats": {"a": -1}}`, nil, "below 0"},
		"a number too high": {`{"bound": {"a": 3000000000}}`, nil, "cannot unmarshal"},
		"another field":     {`{"rooms": {}}`, nil, "unknown field"},
		"too long":          {strings.Repeat(" ", longestRoom) + "{}", nil, "at most"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRoom(tc.text)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v, want %+v, %q", got, err, tc.want, tc.err)
			}
		})
	}
}
