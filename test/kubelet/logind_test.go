package kubelet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// logind is what a kubelet needs of systemd's logind, and of the bus between them, to be told of a shutdown: machines of tests often have neither. Only a kubelet whose configuration
// has a shutdownGracePeriod asks for it.
type logind struct {
	listener *net.UnixListener
	mu       sync.Mutex
	kubelet  *net.UnixConn
	// held is the end of a pipe whose other end the kubelet closes when the machine may go down. Nil if the kubelet holds nothing back.
	held *os.File
}

var login *logind

// listenAsLogind is the system's bus for kubelets that this process starts later. A restarted kubelet comes again.
func listenAsLogind(dir string) (*logind, error) {
	socket := filepath.Join(dir, "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		return nil, err
	}
	l := &logind{listener: listener}
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				return // the tests are over
			}
			go func() {
				defer connection.Close()
				if err := l.serve(connection); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					fmt.Fprintln(os.Stderr, "logind:", err)
				}
			}()
		}
	}()
	return l, os.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
}

func (l *logind) missing() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		return "it does not"
	}
	return ""
}

// shutDown tells the kubelet that the machine is about to go down. The channel is closed when it may.
func (l *logind) shutDown() (released <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done, held := make(chan struct{}), l.held
	l.held = nil
	go func() {
		defer close(done)
		_, _ = held.Read(make([]byte, 1)) // it ends with the last copy of the other end
		held.Close()
	}()
	_, err = l.kubelet.Write(message(signal, []byte{1, 0, 0, 0}, text(path, 'o', "/org/freedesktop/login1"), text(interfaceName, 's', "org.freedesktop.login1.Manager"),
		text(memberName, 's', "PrepareForShutdown"), text(signature, 'g', "b")))
	return done, err
}

// serve speaks the protocol of D-Bus with one client, as far as a kubelet needs it.
func (l *logind) serve(client *net.UnixConn) error {
	in := bufio.NewReader(client)
	if _, err := in.ReadByte(); err != nil { // a zero byte comes first
		return err
	}
	for line := ""; line != "BEGIN"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
		line = strings.TrimSpace(line)
		answer := map[string]string{"AUTH": "REJECTED EXTERNAL", "NEGOTIATE_UNIX_FD": "AGREE_UNIX_FD", "BEGIN": ""}
		said, known := answer[line]
		if !known {
			said = "OK 0123456789abcdef0123456789abcdef"
		}
		if said != "" {
			if _, err := io.WriteString(client, said+"\r\n"); err != nil {
				return err
			}
		}
	}
	for {
		serial, member, err := readCall(in)
		if err != nil {
			return err
		}
		of := number(replySerial, serial)
		switch member {
		case "Hello":
			_, err = client.Write(message(reply, []byte("\x04\x00\x00\x00:1.1\x00"), of, text(signature, 'g', "s")))
		case "Get": // InhibitDelayMaxUSec, as a variant. With less than its shutdownGracePeriod the kubelet would write into /etc.
			_, err = client.Write(message(reply, binary.LittleEndian.AppendUint64([]byte{1, 't', 0, 0, 0, 0, 0, 0}, uint64(time.Hour.Microseconds())), of, text(signature, 'g', "v")))
		case "Inhibit":
			err = l.inhibit(client, of)
		default:
			_, err = client.Write(message(reply, nil, of))
		}
		if err != nil {
			return err
		}
	}
}

// inhibit gives the client one end of a pipe.
func (l *logind) inhibit(client *net.UnixConn, of []byte) error {
	held, given, err := os.Pipe()
	if err != nil {
		return err
	}
	defer given.Close()
	l.mu.Lock()
	l.kubelet, l.held = client, held
	l.mu.Unlock()
	_, _, err = client.WriteMsgUnix(message(reply, make([]byte, 4), of, text(signature, 'g', "h"), number(fileDescriptors, 1)), syscall.UnixRights(int(given.Fd())), nil)
	return err
}

// Types of messages, and codes of fields of their headers.
const (
	reply, signal = 2, 4

	path, interfaceName, memberName, replySerial, signature, fileDescriptors = 1, 2, 3, 5, 8, 9
)

// message encodes a message of D-Bus.
func message(kind byte, body []byte, fields ...[]byte) []byte {
	var header []byte
	for _, field := range fields {
		header = append(aligned(header), field...)
	}
	encoded := binary.LittleEndian.AppendUint32([]byte{'l', kind, 0, 1}, uint32(len(body)))
	encoded = binary.LittleEndian.AppendUint32(encoded, 1) // its serial number, which nobody needs
	encoded = binary.LittleEndian.AppendUint32(encoded, uint32(len(header)))
	return append(aligned(append(encoded, header...)), body...)
}

// aligned adds zeros up to a multiple of eight bytes.
func aligned(b []byte) []byte { return append(b, make([]byte, (8-len(b)%8)%8)...) }

func number(code byte, value uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{code, 1, 'u', 0}, value)
}

func text(code, kind byte, value string) []byte {
	encoded := []byte{code, 1, kind, 0}
	if kind == 'g' {
		encoded = append(encoded, byte(len(value)))
	} else {
		encoded = binary.LittleEndian.AppendUint32(encoded, uint32(len(value)))
	}
	return append(append(encoded, value...), 0)
}

// readCall returns the serial number of a call, and the name of the method.
func readCall(in io.Reader) (serial uint32, member string, err error) {
	var start [16]byte
	if _, err := io.ReadFull(in, start[:]); err != nil {
		return 0, "", err
	}
	length := int(binary.LittleEndian.Uint32(start[12:]))
	rest := make([]byte, (length+7)/8*8+int(binary.LittleEndian.Uint32(start[4:])))
	if _, err := io.ReadFull(in, rest); err != nil {
		return 0, "", err
	}
	for at := 0; at < length; at = (at + 7) / 8 * 8 {
		code, kind := rest[at], rest[at+2]
		switch at += 4; kind {
		case 'g':
			at += int(rest[at]) + 2
		case 'u':
			at += 4
		default:
			size := int(binary.LittleEndian.Uint32(rest[at:]))
			if code == memberName {
				member = string(rest[at+4 : at+4+size])
			}
			at += size + 5
		}
	}
	return binary.LittleEndian.Uint32(start[8:]), member, nil
}
