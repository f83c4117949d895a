// One GET with Go's own client.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	answer, err := http.Get("https://" + os.Args[1] + "/page")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 || !strings.Contains(string(body), "served_by") {
		fmt.Fprintln(os.Stderr, answer.Status, string(body), err)
		os.Exit(1)
	}
	fmt.Println("ok")
}
