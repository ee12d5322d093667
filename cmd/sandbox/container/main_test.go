package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// asContainer is an environment variable that makes this program the one of a container.
const asContainer = "BERTH_TEST_AS_CONTAINER"

func TestMain(m *testing.M) {
	if os.Getenv(asContainer) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestAConnectionIsAnsweredAfterSIGTERM: tests count lost answers of a server whose port another one has taken over.
func TestAConnectionIsAnsweredAfterSIGTERM(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), os.Args[0], "serve", "--address="+address)
	server.Env = append(os.Environ(), asContainer+"=1", "VERSION=v1")
	server.Stderr = os.Stderr
	output, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewReader(output)
	line := func() {
		t.Helper()
		if _, err := says.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	line() // it serves
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if answer, err := http.Get("http://" + address); err != nil || answer.Body.Close() != nil { //nolint:gosec,noctx // this test's server
		t.Fatal(err) // it has accepted the earlier connection too
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	line() // it ends
	for refused := false; !refused; {
		another, err := net.DialTimeout("tcp", address, time.Second)
		if refused = err != nil; !refused {
			another.Close()
		}
	}
	if _, err := fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: server\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}
