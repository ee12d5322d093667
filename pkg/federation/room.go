package federation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Room is how many more pods find a node in a cluster. All of it is of one time.
type Room struct {
	At time.Time `json:"at"`
	// Seats by the shape of pods. A shape that is not in it is not known.
	Seats map[string]int32 `json:"seats,omitempty"`
	// Bound is how many pods had a node, by FederatedReplicaSet, as Policy.Key names it.
	Bound map[string]int32 `json:"bound,omitempty"`
}

// longestRoom bounds a report. A cluster chooses what it reports.
const longestRoom = 256 << 10

// ParseRoom decodes a report. An empty one is nil: nothing is reported yet.
func ParseRoom(text string) (*Room, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > longestRoom {
		return nil, fmt.Errorf("the report has %d bytes, at most %d are read", len(text), longestRoom)
	}
	room := &Room{}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(room); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the object")
	}
	for _, numbers := range []map[string]int32{room.Seats, room.Bound} {
		for key, n := range numbers {
			if n < 0 {
				return nil, fmt.Errorf("%.60q has %d, which is below 0", key, n)
			}
		}
	}
	return room, nil
}
