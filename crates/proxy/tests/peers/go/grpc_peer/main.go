// The same as grpc_peer.py with Go's gRPC: a server and client without generated code. `grpc_peer serve HOST`, `call ADDRESS`,
// `try ADDRESS SECONDS`, `again ADDRESS`, `anew ADDRESS`, `stream ADDRESS METHOD`, `last ADDRESSES`.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

const (
	service = "test.Peer"
	largest = 64 << 20
)

// Messages are octets.
type octets struct{}

func (octets) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (octets) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = slices.Clone(data)
	return nil
}

func (octets) Name() string { return "" }

func names(code codes.Code) string {
	if code == codes.Canceled {
		return "CANCELLED"
	}
	var name strings.Builder
	for at, letter := range code.String() {
		if at > 0 && letter >= 'A' && letter <= 'Z' && code != codes.OK {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

// ── The server ──

var (
	cancelled = make(chan struct{})
	cancel    = sync.OnceFunc(func() { close(cancelled) })
)

func forty() string {
	var all [40]byte
	for n := range all {
		all[n] = byte(n)
	}
	return string(all[:])
}

var unary = map[string]func(ctx context.Context, request []byte) ([]byte, error){
	// Names are sent in any order, values of one name in theirs.
	"Unary": func(ctx context.Context, request []byte) ([]byte, error) {
		_ = grpc.SendHeader(ctx, metadata.Pairs("x-initial-bin", "1", "x-initial-bin", "\x00\xff"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-trailing-bin", "2", "x-trailing-bin", forty()))
		slices.Reverse(request)
		return request, nil
	},
	// A trailers-only answer: nothing is sent before the status.
	"Refuse": func(context.Context, []byte) ([]byte, error) {
		return nil, status.Error(codes.FailedPrecondition, "refused: \u00e9 100%")
	},
	"Metadata": func(ctx context.Context, _ []byte) ([]byte, error) {
		own, _ := metadata.FromIncomingContext(ctx)
		return []byte(pairs(own, "x-")), nil
	},
	"LargeTrailers": func(ctx context.Context, _ []byte) ([]byte, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-large", strings.Repeat("v", 16<<10)))
		return []byte("large"), nil
	},
	"WasCancelled": func(context.Context, []byte) ([]byte, error) {
		select {
		case <-cancelled:
			return []byte("yes"), nil
		case <-time.After(10 * time.Second):
			return []byte("no"), nil
		}
	},
	// Nobody waits for it.
	"Slow": func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	},
}

func say(stream grpc.Stream, message string) error {
	octets := []byte(message)
	return stream.SendMsg(&octets)
}

func hear(stream grpc.Stream) ([]byte, error) {
	var message []byte
	err := stream.RecvMsg(&message)
	return message, err
}

var streams = map[string]func(stream grpc.ServerStream) error{
	"Count": func(stream grpc.ServerStream) error {
		request, err := hear(stream)
		if err != nil {
			return err
		}
		count, _ := strconv.Atoi(string(request))
		for number := range count {
			if err := say(stream, strconv.Itoa(number)); err != nil {
				return err
			}
		}
		return nil
	},
	"FailMidway": func(stream grpc.ServerStream) error {
		if err := errors.Join(say(stream, "one"), say(stream, "two")); err != nil {
			return err
		}
		return status.Error(codes.DataLoss, "midway")
	},
	"Endless": func(stream grpc.ServerStream) error {
		err := say(stream, "first")
		<-stream.Context().Done()
		cancel()
		return err
	},
	// Goes on until somebody ends it.
	"Ticks": func(stream grpc.ServerStream) error {
		defer cancel()
		for {
			select {
			case <-stream.Context().Done():
				return nil
			case <-time.After(10 * time.Millisecond):
				if err := say(stream, "tick"); err != nil {
					return err
				}
			}
		}
	},
	"Collect": func(stream grpc.ServerStream) error {
		var got [][]byte
		for {
			message, err := hear(stream)
			if err == io.EOF {
				return say(stream, string(bytes.Join(got, []byte("+"))))
			} else if err != nil {
				return err
			}
			got = append(got, message)
		}
	},
	"Echo": func(stream grpc.ServerStream) error {
		for {
			message, err := hear(stream)
			if err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := say(stream, string(message)); err != nil {
				return err
			}
		}
	},
}

func description() *grpc.ServiceDesc {
	described := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	for name, run := range unary {
		handler := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request []byte
			if err := decode(&request); err != nil {
				return nil, err
			}
			answer, err := run(ctx, request)
			return &answer, err
		}
		described.Methods = append(described.Methods, grpc.MethodDesc{MethodName: name, Handler: handler})
	}
	for name, run := range streams {
		handler := func(_ any, stream grpc.ServerStream) error { return run(stream) }
		stream := grpc.StreamDesc{StreamName: name, Handler: handler, ServerStreams: true, ClientStreams: true}
		described.Streams = append(described.Streams, stream)
	}
	return described
}

// Milliseconds by the names that all implementations know.
func ages() keepalive.ServerParameters {
	given := map[string]int{}
	if text, some := os.LookupEnv("GRPC_OPTIONS"); some {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			log.Fatal(err)
		}
	}
	age := func(name string) time.Duration { return time.Duration(given[name]) * time.Millisecond }
	return keepalive.ServerParameters{
		MaxConnectionAge:      age("grpc.max_connection_age_ms"),
		MaxConnectionAgeGrace: age("grpc.max_connection_age_grace_ms"),
	}
}

func serve(host string) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(octets{}), grpc.MaxRecvMsgSize(largest), grpc.KeepaliveParams(ages()))
	server.RegisterService(description(), nil)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(server.Serve(listener))
}

// ── The client ──

func connect(addresses ...string) *grpc.ClientConn {
	known := manual.NewBuilderWithScheme("peers")
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	known.InitialState(state)
	connection, err := grpc.NewClient("peers:///test", grpc.WithResolvers(known), grpc.WithAuthority(addresses[0]),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(octets{}), grpc.MaxCallRecvMsgSize(largest)))
	if err != nil {
		log.Fatal(err)
	}
	return connection
}

// The context of the round, where there is one.
func headed(more ...string) context.Context {
	if context, some := os.LookupEnv("TRACESTATE"); some {
		more = append(more, "tracestate", context)
	}
	return metadata.NewOutgoingContext(context.Background(), metadata.Pairs(more...))
}

// Metadata by name, without what is the transport's own.
func pairs(made metadata.MD, prefix string) string {
	var all []string
	for name, values := range made {
		hidden := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if hidden(prefix) && !slices.ContainsFunc([]string{"grpc-", "content-", "user-agent", "date"}, hidden) {
			all = append(all, fmt.Sprintf("%s=%q", name, values))
		}
	}
	sort.Strings(all)
	return strings.Join(all, "&")
}

// Messages as Python shows them.
func list(messages []string) string {
	shown := make([]string, len(messages))
	for n, message := range messages {
		shown[n] = "b'" + message + "'"
	}
	return "[" + strings.Join(shown, ", ") + "]"
}

func ask(connection *grpc.ClientConn, name, request string) string {
	message, answer := []byte(request), []byte{}
	var initial, trailing metadata.MD
	err := connection.Invoke(headed("x-b", "2", "x-a-bin", "\x01\x02\x03", "x-a", "1", "x-a", "0"),
		"/"+service+"/"+name, &message, &answer, grpc.Header(&initial), grpc.Trailer(&trailing))
	shown := "b'" + string(answer) + "'"
	if len(answer) > 200 {
		shown = strconv.Itoa(len(answer))
	}
	made := status.Convert(err)
	return fmt.Sprintln(name, shown, names(made.Code()), strconv.Quote(made.Message()), pairs(initial, ""), pairs(trailing, ""))
}

func open(ctx context.Context, connection *grpc.ClientConn, name string) grpc.ClientStream {
	described := &grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(ctx, described, "/"+service+"/"+name)
	if err != nil {
		log.Fatal(err)
	}
	return stream
}

// What came of a call with many answers.
func listen(stream grpc.ClientStream, onMessage func()) ([]string, *status.Status) {
	got := []string{}
	for {
		message, err := hear(stream)
		if err == io.EOF {
			return got, status.New(codes.OK, "")
		} else if err != nil {
			return got, status.Convert(err)
		}
		got = append(got, string(message))
		onMessage()
	}
}

func counted(connection *grpc.ClientConn, name, count string) ([]string, *status.Status, grpc.ClientStream) {
	stream := open(headed(), connection, name)
	_ = say(stream, count)
	_ = stream.CloseSend()
	got, made := listen(stream, func() {})
	return got, made, stream
}

// Each answer must come before the next request is sent: nothing may be buffered.
func echo(connection *grpc.ClientConn, count int) ([]string, *status.Status, grpc.ClientStream) {
	stream := open(headed(), connection, "Echo")
	sent := 0
	next := func() {
		if sent < count {
			_ = say(stream, strconv.Itoa(sent))
			sent++
		} else {
			_ = stream.CloseSend()
		}
	}
	next()
	got, made := listen(stream, next)
	return got, made, stream
}

func call(address string) {
	connection := connect(address)
	show := func(name string, got []string, made *status.Status, stream grpc.ClientStream) {
		initial, _ := stream.Header()
		fmt.Println(name, list(got), names(made.Code()), strconv.Quote(made.Message()), pairs(initial, ""),
			pairs(stream.Trailer(), ""))
	}
	fmt.Print(ask(connection, "Unary", "abc"), ask(connection, "Unary", strings.Repeat("x", 4<<20)))
	for _, name := range []string{"Refuse", "Nowhere", "Metadata", "LargeTrailers"} {
		fmt.Print(ask(connection, name, ""))
	}
	for _, counting := range [][2]string{{"Count", "1000"}, {"Count", "0"}, {"FailMidway", ""}} {
		got, made, stream := counted(connection, counting[0], counting[1])
		show(counting[0], got, made, stream)
	}
	collect := open(headed(), connection, "Collect")
	for _, message := range []string{"a", strings.Repeat("b", 100_000), "c"} {
		_ = say(collect, message)
	}
	_ = collect.CloseSend()
	collected, made := listen(collect, func() {})
	fmt.Println("Collect", len(collected), len(strings.Join(collected, "")), names(made.Code()))
	got, made, stream := echo(connection, 50)
	show("Echo", got, made, stream)
	ctx, giveUp := context.WithCancel(headed())
	endless := open(ctx, connection, "Endless")
	_ = say(endless, "")
	_ = endless.CloseSend()
	got, made = listen(endless, giveUp)
	fmt.Println("Endless", list(got), names(made.Code()))
	fmt.Print(ask(connection, "WasCancelled", ""))
	ctx, giveUp = context.WithTimeout(headed(), 300*time.Millisecond)
	defer giveUp()
	empty := []byte{}
	// Both sides have a clock; whose words come first is a race.
	fmt.Println("Slow", names(status.Code(connection.Invoke(ctx, "/"+service+"/Slow", &empty, &empty))))
	parallel := make([]string, 50)
	var running sync.WaitGroup
	for n := range parallel {
		running.Go(func() { parallel[n] = ask(connection, "Unary", strings.Repeat(strconv.Itoa(n), 90)) })
	}
	running.Wait()
	fmt.Print("Parallel\n", strings.Join(parallel, ""))
}

func invoke(connection *grpc.ClientConn, name string, timeout time.Duration, options ...grpc.CallOption) *status.Status {
	ctx, done := context.WithTimeout(headed(), timeout)
	defer done()
	message, answer := []byte("abc"), []byte{}
	return status.Convert(connection.Invoke(ctx, "/"+service+"/"+name, &message, &answer, options...))
}

func tryOnce(address, seconds string) {
	connection := connect(address)
	timeout, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"Unary", "Metadata"} {
		made := invoke(connection, name, time.Duration(timeout*float64(time.Second)))
		if made.Code() == codes.OK {
			fmt.Println(name, "OK")
		} else {
			fmt.Println(name, names(made.Code()), made.Message())
		}
	}
}

func again(address string, anew bool) {
	connection := connect(address)
	fmt.Println("Unary", names(invoke(connection, "Unary", 20*time.Second).Code()))
	for anew && connection.GetState() == connectivity.Ready {
		connection.WaitForStateChange(context.Background(), connectivity.Ready)
	}
	fmt.Println("Metadata", names(invoke(connection, "Metadata", 20*time.Second, grpc.WaitForReady(true)).Code()))
	_ = connection.Close()
}

func stream(address, name string) {
	connection := connect(address)
	var got []string
	var made *status.Status
	if name == "Echo" {
		got, made, _ = echo(connection, 50)
	} else {
		got, made, _ = counted(connection, name, "50")
	}
	fmt.Println(name, list(got), names(made.Code()), made.Message())
	empty, answer := []byte{}, []byte{}
	if name == "Ticks" {
		_ = connection.Invoke(headed(), "/"+service+"/WasCancelled", &empty, &answer, grpc.WaitForReady(true))
		fmt.Println("WasCancelled", "b'"+string(answer)+"'")
	}
	err := connection.Invoke(headed(), "/"+service+"/Metadata", &empty, &answer, grpc.WaitForReady(true))
	fmt.Println("Metadata", names(status.Code(err)))
}

// Calls all the time until the input ends, some at once, on a channel of their own each.
func last(addresses string) {
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	var lock sync.Mutex
	var callers sync.WaitGroup
	outcomes, answered := map[string]bool{}, 0
	for range 8 {
		callers.Go(func() {
			connection := connect(strings.Split(strings.TrimPrefix(addresses, "ipv4:"), ",")...)
			for {
				select {
				case <-over:
					return
				default:
				}
				made := invoke(connection, "Unary", 20*time.Second)
				if made.Code() != codes.OK {
					log.Print(made.Message())
				}
				lock.Lock()
				outcomes[names(made.Code())] = true
				if answered++; answered%500 == 0 {
					fmt.Println(answered)
				}
				lock.Unlock()
			}
		})
	}
	callers.Wait()
	var all []string
	for outcome := range outcomes {
		all = append(all, outcome)
	}
	sort.Strings(all)
	fmt.Println("outcomes", strings.Join(all, ","))
}

func main() {
	arguments := append(os.Args[1:], "", "", "")
	switch what, address, more := arguments[0], arguments[1], arguments[2]; what {
	case "serve":
		serve(address)
	case "try":
		tryOnce(address, more)
	case "again", "anew":
		again(address, what == "anew")
	case "stream":
		stream(address, more)
	case "last":
		last(address)
	case "call":
		call(address)
	default:
		log.Fatal("what?")
	}
}
