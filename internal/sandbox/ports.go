package sandbox

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the range that the kernel uses for outgoing connections (32768 and up on Linux). So no such connection has the port of a
// component that restarts.
const (
	lowestPort  = 20000
	highestPort = 31999
)

// portPool returns free ports, and none of them twice.
type portPool struct {
	mu    sync.Mutex
	taken map[int]bool
}

func newPortPool() *portPool { return &portPool{taken: map[int]bool{}} }

// take returns a port on which nothing listens now. Another process may still be faster; see Sandbox.launch.
func (p *portPool) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 200 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if p.taken[port] {
			continue
		}
		listener, err := net.Listen("tcp4", loopback(port))
		if err != nil {
			continue // in use by another process
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("freeing port %d: %w", port, err)
		}
		p.taken[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port found between %d and %d", lowestPort, highestPort)
}

// ports are the ports of one instance by purpose.
type ports struct {
	pool *portPool

	mu        sync.Mutex
	first     int
	byPurpose map[string]int
	err       error
}

func newPorts(pool *portPool) *ports { return &ports{pool: pool, byPurpose: map[string]int{}} }

// port returns 0 if there is none. failure then says why.
func (p *ports) port(purpose string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if port, ok := p.byPurpose[purpose]; ok {
		return port
	}
	port, err := p.pool.take()
	if err != nil {
		p.err = err
		return 0
	}
	if p.first == 0 {
		p.first = port
	}
	p.byPurpose[purpose] = port
	return port
}

func (p *ports) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// address returns the address with the first port. Empty if no port was asked for.
func (p *ports) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == 0 {
		return ""
	}
	return loopback(p.first)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
