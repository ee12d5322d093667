// Command container is what runs in the containers of a sandbox's real nodes. It is the only file of their images.
//
//	container pause           waits until it is ended
//	container serve [FLAGS]   is a web server that can be told to be slow, to fail, and to go on after SIGTERM
//	container say WORDS       prints the words, for exec and for hooks
//	container sleep DURATION  ends later
//	container fail            ends with status 1
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
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

// serve answers / with the version of the image, which is in the environment, and /ready with 200 or 503. PUT and DELETE of /ready change that. POST /exit ends the program with
// status 1.
func serve(args []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	address := flags.String("address", ":8080", "address to listen on")
	readyAfter := flags.Duration("ready-after", 0, "how long /ready answers 503 at first")
	endAfter := flags.Duration("end-after", 0, "how long it goes on serving after SIGTERM")
	failAfter := flags.Duration("fail-after", 0, "when to end with status 1, 0 for never")
	hold := flags.Int("hold", 0, "MiB of memory to use")
	_ = flags.Parse(args) // it exits

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
	http.HandleFunc("POST /exit", func(http.ResponseWriter, *http.Request) { exit(fmt.Errorf("told to end")) })
	go func() { exit(http.ListenAndServe(*address, nil)) }() //nolint:gosec // only tests talk to it

	fmt.Printf("version %s serves at %s\n", os.Getenv("VERSION"), *address)
	<-ended()
	fmt.Printf("ends in %s\n", *endAfter)
	time.Sleep(*endAfter)
	fmt.Println(memory[:min(len(memory), 1)]) // the memory is in use until here
}
