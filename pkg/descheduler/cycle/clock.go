package cycle

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// serverClock is the API server's clock, as far as its answers show it. The API server and the components beside it
// wrote since when a pod waits or a node is ready. The clock of the descheduler's machine may be minutes off.
type serverClock struct {
	clock.RealClock
	client *http.Client
	url    string

	// ahead is by how much it is ahead of this machine's. It changes between cycles only.
	ahead time.Duration
}

var _ clock.WithTicker = &serverClock{}

// Now implements clock.PassiveClock.
func (c *serverClock) Now() time.Time { return c.RealClock.Now().Add(c.ahead) }

// Since implements clock.PassiveClock.
func (c *serverClock) Since(since time.Time) time.Duration { return c.Now().Sub(since) }

// align asks the API server for the time. Without an answer in time, or without a date in it, the clock stays as it is.
func (c *serverClock) align(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ahead, err := c.ask(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Deciding by a clock that could not be compared with the API server's")
		return
	}
	c.ahead = ahead
	clockOffset.Set(ahead.Seconds())
}

// ask returns by how much the API server's clock is ahead of this one.
func (c *serverClock) ask(ctx context.Context) (time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return 0, err
	}
	asked := c.RealClock.Now()
	response, err := c.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	shown, err := http.ParseTime(response.Header.Get("Date")) // a refusal has it too
	if err != nil {
		return 0, fmt.Errorf("reading what time it is for the API server, or a proxy before it: %w", err)
	}
	return offsetOf(asked, c.RealClock.Now(), shown), nil
}

// offsetOf is the least difference that explains an answer. At some time between asked and answered, the other clock
// was in the second that begins with shown. So it is ahead by
//
//	shown − answered  to  shown + 1s − asked
func offsetOf(asked, answered, shown time.Time) time.Duration {
	least, most := shown.Sub(answered), shown.Add(time.Second).Sub(asked)
	switch {
	case least > 0:
		return least
	case most < 0:
		return most
	default:
		return 0
	}
}
