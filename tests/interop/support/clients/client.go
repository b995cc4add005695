// Downloads and uploads over two TLS connections that share a cache of sessions.
//
// client PORT AUTHORITY NAME VERSION GROUP LENGTH prints a line for each connection: version,
// whether the session was resumed, the hash of what it downloaded, and the origin's report about
// the upload of the same bytes.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// X25519MLKEM768 by its number: versions before 1.24 have no name for it.
var groups = map[string]tls.CurveID{"X25519": tls.X25519, "P-256": tls.CurveP256,
	"X25519MLKEM768": 4588}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func body(response *http.Response, err error) []byte {
	check(err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	check(err)
	if response.StatusCode != 200 {
		check(fmt.Errorf("status %d", response.StatusCode))
	}
	return data
}

func run(config *tls.Config, port, name, length string) {
	state := tls.ConnectionState{}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: config,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
		},
	}}
	origin := "https://" + name + ":" + port
	response, err := client.Get(origin + "/bytes/" + length)
	if err == nil {
		state = *response.TLS
	}
	data := body(response, err)
	report := body(client.Post(origin+"/upload", "", bytes.NewReader(data)))
	version := map[uint16]string{tls.VersionTLS12: "TLSv1.2", tls.VersionTLS13: "TLSv1.3"}
	fmt.Printf("%s %t %x %s\n", version[state.Version], state.DidResume, sha256.Sum256(data), report)
	client.CloseIdleConnections()
}

func main() {
	port, authority, name, version, group, length := os.Args[1], os.Args[2], os.Args[3], os.Args[4],
		os.Args[5], os.Args[6]
	pem, err := os.ReadFile(authority)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: roots, MinVersion: versions[version],
		MaxVersion: versions[version], CurvePreferences: []tls.CurveID{groups[group]},
		ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	for connection := 0; connection < 2; connection++ {
		run(config, port, name, length)
	}
}
