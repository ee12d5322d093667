// Command container is what runs in the containers of a sandbox's real nodes. It is the only file of their images.
//
//	container pause           waits until it is ended
//	container serve [FLAGS]   is a web server that can be told to be slow, to fail, and to go on after SIGTERM
//	container say WORDS       prints the words, for exec and for hooks
//	container sleep DURATION  ends later
//	container fail            ends with status 1
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	command, args := "pause", os.Args[1:]
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "pause":
		<-ended()
	case "serve":
		serve(args)
	case "say":
		fmt.Println(strings.Join(args, " "))
	case "sleep":
		duration, err := time.ParseDuration(strings.Join(args, ""))
		if err != nil {
			exit(err)
		}
		time.Sleep(duration)
	default:
		exit(fmt.Errorf("told to %s", command))
	}
}

func exit(reason error) {
	fmt.Fprintln(os.Stderr, reason)
	os.Exit(1)
}

func ended() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	return signals
}

// serve answers / with the version of the image, which is in the environment, and /ready with 200 or 503. PUT and
// DELETE of /ready change that. POST /exit ends the program with status 1, and POST /exit?status=0 with status 0.
func serve(args []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	address := flags.String("address", ":8080", "address to listen on")
	readyAfter := flags.Duration("ready-after", 0, "how long /ready answers 503 at first")
	handOver := flags.String("hand-over", "", "path of a socket, through which a server gets the open port of the one before it and gives it to the next one")
	endAfter := flags.Duration("end-after", 0, "how long it goes on serving after SIGTERM")
	failAfter := flags.Duration("fail-after", 0, "when to end with status 1, 0 for never")
	hold := flags.Int("hold", 0, "MiB of memory to use")
	_ = flags.Parse(args) // it exits

	end := ended() // from now on
	memory := make([]byte, *hold<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	var ready atomic.Bool
	time.AfterFunc(*readyAfter, func() { ready.Store(true) })
	if *failAfter > 0 {
		time.AfterFunc(*failAfter, func() { exit(fmt.Errorf("told to fail after %s", *failAfter)) })
	}
	http.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, os.Getenv("VERSION")) })
	http.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("PUT /ready", func(http.ResponseWriter, *http.Request) { ready.Store(true) })
	http.HandleFunc("DELETE /ready", func(http.ResponseWriter, *http.Request) { ready.Store(false) })
	http.HandleFunc("POST /exit", func(_ http.ResponseWriter, request *http.Request) {
		if request.FormValue("status") == "0" {
			os.Exit(0)
		}
		exit(fmt.Errorf("told to end"))
	})
	listener, err := listen(*address, *handOver)
	if err != nil {
		exit(err)
	}
	var connections sync.WaitGroup
	server := &http.Server{ConnState: func(_ net.Conn, state http.ConnState) { //nolint:gosec // only tests talk to it
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Done()
		}
	}}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	fmt.Printf("version %s serves at %s\n", os.Getenv("VERSION"), *address)
	select {
	case err := <-served:
		exit(err)
	case <-end:
	}
	fmt.Printf("ends in %s\n", *endAfter)
	time.Sleep(*endAfter)
	if err := listener.Close(); err != nil {
		exit(err)
	}
	// Each connection is counted once Serve has returned. Each gets its answer, also if its request comes now: Shutdown
	// would close it then.
	<-served
	server.SetKeepAlivesEnabled(false)
	answered := make(chan struct{})
	go func() {
		connections.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(5 * time.Second):
		exit(errors.New("a client has not asked yet"))
	}
	fmt.Println(string(memory[:min(len(memory), 1)])) // the memory is in use until here
}

// listen opens the port, or gets it from the server that has it. No connection is lost then, as one queue of
// connections serves both.
func listen(address, handOver string) (net.Listener, error) {
	listener, err := received(handOver)
	if err != nil {
		listener, err = net.Listen("tcp", address)
	}
	if err != nil || handOver == "" {
		return listener, err
	}
	if err := os.Remove(handOver); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	nexts, err := net.ListenUnix("unix", &net.UnixAddr{Name: handOver})
	if err != nil {
		return nil, err
	}
	nexts.SetUnlinkOnClose(false) // the next one has its own there
	port, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			next, err := nexts.AcceptUnix()
			if err == nil {
				var writeErr error
				err = port.Control(func(file uintptr) { _, _, writeErr = next.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(file)), nil) })
				err = errors.Join(err, writeErr, next.Close())
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
		}
	}()
	return listener, nil
}

// received returns the open port that another server gives at the path.
func received(path string) (net.Listener, error) {
	previous, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		return nil, err
	}
	defer previous.Close()
	rights := make([]byte, syscall.CmsgSpace(4))
	_, length, _, _, err := previous.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:length])
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(err, errors.New("told to take over without a port"))
	}
	files, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(files[0]), "port")
	defer file.Close()
	return net.FileListener(file)
}
